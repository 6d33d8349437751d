"""HEALTHCHECK of the image, for every part of it: what listens in this container has to say that it lives."""

import http.client
import os
import sys


def lives(port: str | None) -> bool | None:
    """None: nothing listens there."""
    if not port:
        return None
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=4)
    try:
        connection.request("GET", "/livez")
        return connection.getresponse().status == 200
    except ConnectionRefusedError:
        return None
    except (OSError, http.client.HTTPException):
        return False


if __name__ == "__main__":
    said = [lives(os.environ.get("TASKGATE_PORT") or "8080"), lives(os.environ.get("TASKGATE_WORKER_HEALTH_PORT"))]
    sys.exit(0 if True in said and False not in said else "nothing in here says that it lives")
