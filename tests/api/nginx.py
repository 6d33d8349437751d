"""nginx before a gateway: compressing and buffering as it does by itself, with the example page beside the API."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.api.conftest import ROOT
from tests.processes import free_port

PAGE = ROOT / "docs" / "examples" / "watch.html"
_CONFIG = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  gzip on; gzip_types *; gzip_proxied any; gzip_min_length 1;
  server {{
    listen 127.0.0.1:{port};
    location = /watch.html {{ default_type text/html; alias {page}; }}
    location / {{ proxy_pass http://127.0.0.1:{gateway}; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


@contextlib.contextmanager
def nginx(folder: Path, gateway_port: int) -> Iterator[str]:
    """Its URL."""
    port = free_port()
    folder.mkdir()
    config = folder / "nginx.conf"
    config.write_text(_CONFIG.format(folder=folder, port=port, gateway=gateway_port, page=PAGE))
    with subprocess.Popen(["nginx", "-c", str(config), "-p", str(folder), "-e", str(folder / "error.log")]) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()
