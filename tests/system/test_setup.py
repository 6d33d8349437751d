"""tools/setup.sh: refusals before anything is installed, and environments that are whole or not there at all."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INTERPRETERS = ("python3.13", "python3.12", "python3.11", "python3")

FAKE_PYTHON = """#!/usr/bin/env bash
# A real interpreter but for what would need the network: `-m venv` makes a copy of this file, `-m pip` a script.
real={real!r}
case "$1 $2" in
"-m venv")
  mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && printf 'command = %s\\n' "$PWD/$3" >"$3/pyvenv.cfg" ;;
"-m pip")
  echo "$*" >>"$LOG"
  if [[ -p $HERE ]]; then echo here >"$HERE"; read -r _ <"$GO"; fi
  if [[ -n ${{PIP_FAILS:-}} ]]; then echo "no matching distribution" >&2; exit 1; fi
  cd "${{0%/*}}"
  printf '#!/bin/sh\\nexec "%s/python" -c "print(42)"\\n' "$PWD" >tool && chmod +x tool ;;
*)
  # Only the probe asks for it: what set-up is told of must stay this file.
  if [[ $2 == *pidfd_open* ]]; then "$real" "$@" | sed "1s|.*|$0|"; else exec "$real" "$@"; fi ;;
esac
"""


@dataclass
class Project:
    """A copy of what set-up reads, in a folder with a space in its name, and a PATH whose Python installs nothing."""

    root: Path
    bin: Path
    environ: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def env(self) -> Path:
        return self.root / f".venv-{sys.version_info.major}.{sys.version_info.minor}"

    @property
    def pip_calls(self) -> list[str]:
        log = Path(self.environ["LOG"])
        return log.read_text().splitlines() if log.exists() else []

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["tools/setup.sh", *arguments],
            cwd=self.root,
            env=self.environ | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def set_up(self, *arguments: str, **environ: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **environ)
        out, err = process.communicate()
        return process.returncode, out, err

    def hold_pip(self) -> tuple[Path, Path]:
        """Pip then writes to the first pipe when it runs, and goes on once the second is written to."""
        here, go = Path(self.environ["HERE"]), Path(self.environ["GO"])
        os.mkfifo(here)
        os.mkfifo(go)
        return here, go


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    root = tmp_path / "a project"
    (root / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools/setup.sh", root / "tools")
    for name in ("pyproject.toml", "constraints.txt"):
        (root / name).write_text("as it was\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    pipes = {"LOG": "pip.log", "HERE": "here", "GO": "go"}
    environ = {"PATH": f"{programs}:/usr/bin:/bin"} | {name: str(tmp_path / file) for name, file in pipes.items()}
    made = Project(root, programs, environ)
    for name in INTERPRETERS:
        made.program(name, FAKE_PYTHON.format(real=sys.executable))
    yield made
    for process in made.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def pretend(project: Project, statement: str) -> None:
    """Every interpreter on PATH is this one after that statement."""
    for name in INTERPRETERS:
        project.program(
            name, f'#!/bin/sh\nexec {sys.executable} -c "import sys; {statement}; exec(sys.argv.pop())" "$2"\n'
        )


def test_another_platform_is_refused_in_one_line(project: Project) -> None:
    project.program("uname", "#!/bin/sh\necho Darwin\n")
    code, _, err = project.set_up()
    assert code == 1
    assert err.count("\n") == 1
    assert "not on Darwin: use a Linux container" in err
    assert project.pip_calls == []


def test_an_old_python_is_refused_by_its_version(project: Project) -> None:
    pretend(project, "sys.version_info = (3, 10, 13)")
    code, _, err = project.set_up()
    assert code == 1
    assert err.count("\n") == 1
    assert (
        "is Python 3.10.13, but 3.11 or newer is needed: install it, or name it with PYTHON=/path/to/python3.11" in err
    )


def test_a_python_without_venv_is_refused_with_the_package_to_install(project: Project) -> None:
    """Debian's python3 has no ensurepip until that package is there."""
    pretend(project, "sys.modules['ensurepip'] = None")
    code, _, err = project.set_up()
    assert code == 1
    assert err.count("\n") == 1
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"has no venv module: install it, on Debian or Ubuntu with: apt-get install python{minor}-venv" in err
    assert list(project.root.glob(".venv*")) == []


def test_a_kernel_without_pidfd_is_refused(project: Project) -> None:
    pretend(project, "import os; os.pidfd_open = lambda pid: os.close(-1)")
    code, _, err = project.set_up()
    assert code == 1
    assert err.count("\n") == 1
    assert "no pidfd (Linux 5.3 or newer; WSL 1 has none)" in err


def test_an_interpreter_that_does_not_run_gives_way_to_the_next(project: Project) -> None:
    """A pyenv shim stands on PATH for versions that are not selected, and fails."""
    project.program("python3.13", "#!/bin/sh\necho 'pyenv: python3.13: command not found' >&2\nexit 127\n")
    assert project.set_up()[0] == 0
    assert project.env.is_dir()


def test_a_python_named_but_missing_is_refused(project: Project) -> None:
    code, _, err = project.set_up(PYTHON="python9.9")
    assert code == 1
    assert "no Python found as python9.9" in err


def test_scripts_work_after_the_rename_and_a_command_runs_in_the_environment(project: Project) -> None:
    code, out, err = project.set_up("--", "tool")
    assert (code, out) == (0, "42\n"), err
    assert ".new" not in (project.env / "pyvenv.cfg").read_text()
    assert ".new" not in (project.env / "bin/tool").read_text()


def test_nothing_is_built_again_until_something_changed(project: Project) -> None:
    project.set_up()
    built = len(project.pip_calls)
    assert project.set_up() == (0, "", "")
    assert len(project.pip_calls) == built
    (project.root / "constraints.txt").write_text("as it is now\n")
    assert project.set_up()[0] == 0
    assert len(project.pip_calls) == 2 * built


def test_a_moved_folder_is_built_again(project: Project) -> None:
    project.set_up()
    project.root = project.root.rename(project.root.with_name("moved"))
    code, out, err = project.set_up("--", "tool")
    assert (code, out) == (0, "42\n")
    assert "building" in err


def test_an_extra_has_an_environment_of_its_own(project: Project) -> None:
    project.set_up()
    assert project.set_up("load", "--", "tool")[:2] == (0, "42\n")
    assert project.env.with_name(f"{project.env.name}-load").is_dir()
    assert ".[demo,test,load]" in project.pip_calls[-1]
    assert (project.root / ".venv").readlink() == Path(project.env.name)


def test_dot_venv_leads_to_it_and_another_python_does_not_take_it_over(project: Project) -> None:
    link = project.root / ".venv"
    link.symlink_to(".venv-3.0")
    project.set_up()
    assert link.readlink() == Path(project.env.name)
    link.unlink()
    (project.root / ".venv-3.0").mkdir()
    link.symlink_to(".venv-3.0")
    project.set_up(PYTHON="python3")
    assert link.readlink() == Path(".venv-3.0")


def test_a_folder_that_somebody_made_is_left_alone(project: Project) -> None:
    (project.root / ".venv").mkdir()
    assert project.set_up("--", "tool")[:2] == (0, "42\n")
    assert not (project.root / ".venv").is_symlink()
    assert list((project.root / ".venv").iterdir()) == []


def test_a_failed_install_shows_pips_words_and_leaves_nothing_half_made(project: Project) -> None:
    code, _, err = project.set_up(PIP_FAILS="1")
    assert code == 1
    assert "no matching distribution" in err
    assert [path.suffix for path in project.root.glob(".venv*")] == [".lock"]


def test_a_failed_install_does_not_make_the_old_environment_count(project: Project) -> None:
    project.set_up()
    (project.root / "constraints.txt").write_text("as it is now\n")
    assert project.set_up("--", "tool", PIP_FAILS="1")[:2] == (1, "")
    assert project.set_up("--", "tool")[:2] == (0, "42\n")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_install_is_never_taken_for_whole(project: Project, signum: signal.Signals) -> None:
    here, go = project.hold_pip()
    process = project.start()
    here.read_text()
    os.killpg(process.pid, signum)
    assert process.wait() != 0
    assert not project.env.exists()
    here.unlink()
    go.unlink()
    assert project.set_up("--", "tool")[:2] == (0, "42\n")
    assert list(project.root.glob(".venv*.new")) == []


def test_two_at_once_build_once(project: Project) -> None:
    here, go = project.hold_pip()
    first = project.start("--", "tool")
    here.read_text()
    second = project.start("--", "tool")
    assert second.stderr is not None
    assert "waiting for another set-up" in second.stderr.readline()
    here.unlink()
    go.write_text("go\n")
    assert first.communicate()[0] == "42\n"
    assert second.communicate()[0] == "42\n"
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(project.pip_calls) == 2
