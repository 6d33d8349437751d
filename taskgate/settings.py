"""Settings: every `TASKGATE_*` variable, validated once per process and passed down. Nothing else reads them."""

import difflib
import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import parse_qs, urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
    model_validator,
)

from taskgate import policy, secret_files
from taskgate.contract.ids import NAME_RULE, is_name
from taskgate.contract.limits import milliseconds
from taskgate.contract.models import Limits, QueueLimits
from taskgate.network import HEADER_RULE, fits_header, is_loopback
from taskgate.policy import Policy, PolicyError
from taskgate.secret_files import SecretFileError

PREFIX = "TASKGATE_"
_DAY_S = 86_400
_MOST_PROCESSES = 1024
_LARGEST = ByteSize(256 * 1024**2)
"""Redis takes no string of more than 512 MiB, and a request holds more than the body."""


def cpus() -> int:
    """Whole CPUs this process may use: the smaller of its affinity and its cgroup quota, at least 1."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except OSError:
        return count
    return count if quota == "max" else max(1, min(count, int(quota) // int(period)))


def _names(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


_ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[1-9][0-9]{0,4})?")
"""As browsers send it, since it is compared as a whole."""

_URL_OPTIONS = frozenset(
    {"db", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"}
)
"""Others would change the client's policy behind our back, or be an error at the first call only."""


def _wrong_with_redis_url(url: str) -> str:
    """Why nothing can be done with it; "" if something can. Shows none of it: any part may be the secret."""
    no_url = "not a redis://, rediss:// or unix:// URL (is its password percent-encoded?)"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return no_url
    login, _, place = parts.netloc.rpartition("@")
    # An unescaped password was cut apart: another host would be asked, or the secret shown as a part of its name.
    cut = "@" in parts.path + parts.query + parts.fragment if parts.scheme != "unix" else bool(place)
    illegal = not login.isascii() or re.search(r"%(?![0-9A-Fa-f]{2})|\s", login)
    if parts.scheme not in ("redis", "rediss", "unix") or cut or illegal or parts.fragment or port == 0:
        return no_url
    options = parse_qs(parts.query, keep_blank_values=True)
    if not options.keys() <= _URL_OPTIONS:
        return f"options of the URL can be {', '.join(sorted(_URL_OPTIONS))}"
    database = options.get("db", [""])[0] or ("" if parts.scheme == "unix" else parts.path.strip("/"))
    if database and not (database.isascii() and database.isdigit()):
        return "its database is not a number (redis://host:6379/0)"
    return "" if parts.scheme != "unix" or parts.path.startswith("/") else no_url


class SettingsError(Exception):
    """One line per wrong setting; never shows a secret's value."""


class Settings(BaseModel):
    """One frozen object per process. Field `x` is `TASKGATE_X` and, on the command line, `--x`."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    redis_url: SecretStr | None = Field(None, description="Redis or Valkey; without it `up` runs an embedded Valkey")
    host: str = Field("127.0.0.1", description="address the gateway listens on")
    port: int = Field(8080, ge=0, le=65535, description="port the gateway listens on; 0 picks a free one")
    data_dir: Path = Field(Path("taskgate-data"), description="folder of the embedded Valkey and its socket")
    gateway_processes: PositiveInt = Field(1, le=_MOST_PROCESSES, description="gateway processes")
    worker_processes: PositiveInt = Field(
        default_factory=cpus,
        le=_MOST_PROCESSES,
        description="children for sync tasks; double it when they mostly wait for others",
    )
    async_processes: NonNegativeInt = Field(1, le=_MOST_PROCESSES, description="children for async tasks")
    async_slots: PositiveInt = Field(100, le=1000, description="async tasks at a time in each such child")
    child_max_tasks: PositiveInt | None = Field(None, description="a child is replaced after so many tasks")
    child_max_rss_mb: PositiveInt | None = Field(
        None, description="a child of more resident memory is replaced after its task"
    )
    queues: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        (), description="queues to work on; empty: those of the handlers"
    )
    handlers: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        ("workers.handlers",), description="modules with handlers, comma-separated"
    )
    lease_s: float = Field(6.0, ge=0.3, le=300, description="a silent supervisor is dead after that long")
    pause_s: float = Field(
        120.0, ge=0, le=_DAY_S, description="how long the guard keeps tasks stopped while Redis is away"
    )
    grace_s: float = Field(20.0, ge=0.1, le=_DAY_S, description="bounds a whole stop")
    stall_after_s: PositiveFloat = Field(
        30.0, le=30 * _DAY_S, description="neither CPU time nor progress for that long is a stall"
    )
    unknown_type_after_s: float = Field(
        300.0,
        ge=1,
        le=30 * _DAY_S,
        description="tasks of a type that no live supervisor has served for so long fail; a host must restart in less",
    )
    queue_limit_tasks: PositiveInt = Field(100_000, le=10**9, description="tasks that may wait in a queue")
    queue_limit_bytes: ByteSize = Field(
        ByteSize(256 * 1024**2), gt=0, le=2**50, description="bytes that may wait in a queue"
    )
    queue_limit_wait_s: PositiveFloat | None = Field(
        None, le=366 * _DAY_S, description="expected wait in a queue above which it takes no more; unset: any"
    )
    policy_file: Path | None = Field(None, description="TOML file: limits, rates and shares of queues and tenants")
    max_body_bytes: ByteSize = Field(ByteSize(1024**2), gt=0, le=_LARGEST, description="largest request body")
    result_max_bytes: ByteSize = Field(ByteSize(1024**2), gt=0, le=_LARGEST, description="largest result")
    status_cache_ms: NonNegativeInt = Field(
        500, le=3_600_000, description="age up to which a status may be served from memory"
    )
    retention_s: PositiveInt = Field(_DAY_S, le=3650 * _DAY_S, description="how long finished tasks are kept")
    retention_bytes: ByteSize = Field(
        ByteSize(1024**3), gt=0, le=2**50, description="bytes that finished tasks may keep; then the oldest go"
    )
    dead_retention_s: PositiveInt = Field(7 * _DAY_S, le=3650 * _DAY_S, description="how long dead letters are kept")
    partitions: int = Field(1, ge=1, le=256, description="hash tags that keys are spread over")
    api_key: SecretStr | None = Field(None, description="key every request must carry")
    insecure: bool = Field(False, description="without a key, allow a non-loopback address, and requests to any name")
    tenant_header: str | None = Field(None, description="header that names the tenant (behind a trusted proxy)")
    cors_origins: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        (), description="origins (https://app.example) of pages that may call the gateway, comma-separated"
    )
    strict: bool = Field(False, description="refuse to start on a Redis that may lose or evict")
    worker_health_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="port of a supervisor's health and metrics, on TASKGATE_HOST; 0 picks a free one",
    )
    log_format: Literal["auto", "json", "ecs", "console"] = Field(
        "auto", description="auto: console on a terminal, else JSON; ecs: JSON with the names of Elastic"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level logged")
    access_log: bool = Field(False, description="a log line for every request but probes")
    trace_parent: bool = Field(
        False, description="an attempt's span is a child of its submission's, not only linked with it"
    )

    @model_validator(mode="after")
    def _check(self) -> "Settings":
        if not is_loopback(self.host) and self.api_key is None and not self.insecure:
            raise ValueError(
                "host: a non-loopback address needs TASKGATE_API_KEY, or TASKGATE_INSECURE=true if it is meant"
            )
        if self.api_key is not None and not (self.api_key and fits_header(self.api_key.get_secret_value())):
            raise ValueError(f"api_key: a key is {HEADER_RULE}")
        if not self.handlers:
            raise ValueError("handlers: name at least one module")
        if not all(map(is_name, self.queues)):
            raise ValueError(f"queues: names have {NAME_RULE}")
        if not all(map(_ORIGIN.fullmatch, self.cors_origins)):
            raise ValueError("cors_origins: each is scheme://host[:port] in lower case, without a path; * is none")
        if self.redis_url is not None and (wrong := _wrong_with_redis_url(self.redis_url.get_secret_value())):
            raise ValueError(f"redis_url: {wrong}")
        try:
            self.policy  # noqa: B018  a mistake in the file is one of the settings
        except PolicyError as error:
            raise ValueError(f"policy_file: {error}") from None
        return self

    @cached_property
    def policy(self) -> Policy:
        return policy.load(self.policy_file)

    @cached_property
    def limits(self) -> Limits:
        """What admission goes by."""
        others = QueueLimits(
            tasks=self.queue_limit_tasks,
            bytes=int(self.queue_limit_bytes),
            wait_ms=milliseconds(self.queue_limit_wait_s),
        )
        return policy.limits(self.policy, others)

    @property
    def lease_ms(self) -> int:
        return round(self.lease_s * 1000)

    @property
    def soft_stop_s(self) -> float:
        """So long before the end of its grace a supervisor gives what still runs its soft signal."""
        return min(5.0, self.grace_s / 2)


def load(environ: Mapping[str, str] | None = None, **options: Any) -> Settings:
    """Settings from the environment, `options` (None: not given) winning.

    Raises:
        SettingsError: a value does not fit, or a `TASKGATE_*` variable is not known.
    """
    environ = os.environ if environ is None else environ
    try:
        environ = {**environ, **secret_files.read(environ, map(variable, SECRETS))}
    except SecretFileError as error:
        raise SettingsError(str(error)) from None
    given: dict[str, Any] = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(PREFIX) and name not in _OTHERS and (value != "" or name in _NEVER_EMPTY)
    }
    given |= {name: value for name, value in options.items() if value is not None}
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        raise SettingsError("\n".join(_line(one) for one in error.errors(include_url=False))) from None


def variable(field: str) -> str:
    return PREFIX + field.upper()


SECRETS = tuple(
    name
    for name, field in Settings.model_fields.items()
    if SecretStr in (field.annotation, *get_args(field.annotation))
)
SECRET_FILES = frozenset(variable(name) + secret_files.SUFFIX for name in SECRETS)
"""Variables that name a file with a secret in it."""

_OTHERS = frozenset({"TASKGATE_URL"}) | SECRET_FILES
"""No settings: read by the client commands, which need no other, and what has been read by then."""


_NEVER_EMPTY = frozenset({"TASKGATE_HANDLERS"})
"""Other variables are as if not set when they are empty; here the demo's handlers would be a surprise."""


def _line(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(name, Settings.model_fields, 1)
        hint = f"did you mean {PREFIX}{close[0].upper()}?" if close else "`taskgate up --help` lists them"
        return f"{PREFIX}{name.upper()}: no such setting; {hint}"
    message = error["msg"].removeprefix("Value error, ")
    if not name:  # a check of several fields names the one to change
        name, _, message = message.partition(": ")
    return f"{PREFIX}{name.upper()}: {message}"
