"""The HTTP server: the files of a page, and its functions as `POST /v1/view/NAME`.

Every answer but a file is JSON; an error is `{"error": "one sentence"}`.
"""

import asyncio
import json
import logging
import mimetypes
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .page import INDEX, Page
from .worker import Worker

logger = logging.getLogger(__name__)

POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
MOST_BYTES = 42 * 2**20  # of a request: a picture of 30 MiB in base64
NOT_UNDERSTOOD = "The request is not one of this service: load the page again."


class Server:
    """Serves a page until SIGINT, SIGTERM or `stop`.

    Args:
        page: what to serve.
        listener: a socket that listens.
    """

    def __init__(self, page: Page, listener: socket.socket) -> None:
        self._listener = listener
        self._worker = Worker()
        config = uvicorn.Config(
            application(page, self._worker), log_level="warning", server_header=False
        )
        self._server = uvicorn.Server(config)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()

    def run(self) -> None:
        """Answer requests; at the end, those that were accepted."""
        self._server.run([self._listener])

    def stop(self) -> None:
        """End `run` from another thread."""
        self._server.should_exit = True


def application(page: Page, worker: Worker) -> Starlette:
    """What answers the requests of a page."""

    async def view(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in page.views:
            raise HTTPException(404, f"There is no view {name} here.")
        value = await received_json(request)
        try:
            found = await asyncio.wrap_future(worker.submit(page.views[name], value))
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            logger.warning("a request to %s was not understood: %r", name, error)
            raise HTTPException(400, NOT_UNDERSTOOD) from None
        return answer(found)

    return Starlette(
        routes=[
            Route("/v1/view/{name}", view, methods=["POST"]),
            *(Route(_path(name), _file(name, text)) for name, text in page.files.items()),
        ],
        exception_handlers={
            HTTPException: _http_error,
            ValueError: lambda _, error: answer({"error": str(error)}, status=400),
            Exception: lambda *_: answer({"error": "The service failed."}, status=500),
        },
    )


def _path(name: str) -> str:
    return "/" if name == INDEX else f"/{name}"


def _file(name: str, text: str) -> Callable[[Request], Response]:
    """What answers requests of a file."""
    headers = {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    kind = mimetypes.guess_type(name)[0] or "text/plain"
    return lambda _: Response(text, media_type=kind, headers=headers)


def answer(value: Any, *, status: int = 200) -> Response:
    """A JSON value; in ASCII, since a text may have half of a surrogate pair."""
    return Response(json.dumps(value), status, media_type="application/json")


async def received_json(request: Request) -> Any:
    """The JSON value of a request.

    Raises:
        HTTPException: it is too large.
        ValueError: it is no JSON.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"A request has at most {MOST_BYTES >> 20} MiB.")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("The body of the request is not JSON.") from None


def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return answer({"error": error.detail}, status=error.status_code)
