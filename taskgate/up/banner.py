"""What `up` prints once it is ready: where it is and the first thing to try."""

from taskgate.settings import Settings
from taskgate.up.address import web_host

_EXAMPLE = """{"type": "demo.echo", "payload": {"message": "hello"}}"""


def banner(settings: Settings, port: int) -> str:
    host = web_host(settings.host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    key = ' -H "Authorization: Bearer $TASKGATE_API_KEY"' if settings.api_key else ""
    built_in = "workers.handlers" in settings.handlers
    first = (
        f"curl {url}/tasks -H 'Content-Type: application/json'{key} -d '{_EXAMPLE}'"
        if built_in
        else f"curl {url}/task-types{key}"
    )
    data = "of TASKGATE_REDIS_URL" if settings.redis_url else settings.data_dir.absolute()
    return "\n".join(
        [
            "",
            f"  Taskgate is ready at {url}",
            "",
            f"  try it  {first}",
            f"  docs    {url}/docs",
            f"  data    {data}",
            "  stop    Ctrl-C",
            "",
        ]
    )
