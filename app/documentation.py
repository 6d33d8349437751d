"""The API documentation: a page and its assets from this package; no other host is asked."""

from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse

from app.errors import Problem

_ASSETS = Path(__file__).parent / "static"
_TYPES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "docs.js": "text/javascript"}
# Swagger UI sets styles from its script; nothing else is allowed that is not ours.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Taskgate API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="documentation"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/docs.js"></script>
</body>
</html>
"""


def router(openapi: Callable[[], bytes]) -> APIRouter:
    """`openapi`: makes the document, when it is first asked for."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/docs")
    async def page() -> Response:
        return Response(_PAGE, headers={"Content-Security-Policy": _POLICY}, media_type="text/html")

    @routes.get("/docs/{name}")
    async def asset(name: str) -> Response:
        if name not in _TYPES:
            raise Problem("not-found")
        return FileResponse(_ASSETS / name, media_type=_TYPES[name], headers={"Cache-Control": "max-age=86400"})

    @routes.get("/openapi.json")
    async def description() -> Response:
        return Response(openapi(), media_type="application/json")

    return routes
