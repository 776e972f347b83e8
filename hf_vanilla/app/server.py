"""The HTTP server: files of a page, and functions that answer JSON to JSON or forms.

An error is `{"error": "one sentence"}`, without paths, options or tracebacks.
"""

import asyncio
import json
import logging
import mimetypes
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from .access import Access, Guard
from .page import INDEX, Served
from .worker import BusyError, Worker

logger = logging.getLogger(__name__)

POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
FILE_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
MAX_SECONDS = 60.0  # until a request is answered
END_SECONDS = 80  # after SIGTERM; a client that does not read its answer is then dropped
RETRY_SECONDS = 2  # after which a refused client asks again
MOST_CONNECTIONS = 2048
MOST_FIELDS = 1000  # of a form
CLIENT_LEFT = 499  # the status in the metrics
VIEWS = "/v1/view/"  # what the page asks for
# what a view does not understand is the visitor's mistake
MISREAD = (AttributeError, IndexError, KeyError, OverflowError, TypeError)
NOT_UNDERSTOOD = "The request is not one of this service: load the page again."


class Server(uvicorn.Server):
    """Serves until SIGINT, SIGTERM or `should_exit`; what was accepted is then still answered.

    Args:
        served: what it answers.
        listener: a socket that listens.
        worker: computes the answers.
        access: who may ask.
    """

    def __init__(
        self, served: Served, listener: socket.socket, worker: Worker, access: Access
    ) -> None:
        self._listener = listener
        super().__init__(
            uvicorn.Config(
                application(served, worker, access),
                log_level="warning",
                server_header=False,
                limit_concurrency=MOST_CONNECTIONS,
                timeout_graceful_shutdown=END_SECONDS,
            )
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer requests; Ctrl-C is the usual end."""
        with suppress(KeyboardInterrupt):
            super().run(sockets or [self._listener])


class Metrics:
    """Numbers of a service, as Prometheus reads them.

    Args:
        worker: whose queue and batches are counted.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds: dict[str, float] = {}

    def add(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests[path, status] += 1
        self.seconds[path] = self.seconds.get(path, 0.0) + seconds

    def text(self) -> str:
        """All of them."""
        worker, lines = self._worker, []

        def add(name: str, type_: str, values: Mapping[str, float]) -> None:
            lines.append(f"# TYPE hf_vanilla_{name} {type_}")
            lines.extend(f"hf_vanilla_{name}{labels} {value}" for labels, value in values.items())

        requests = {
            f'{{path="{path}",status="{status}"}}': count
            for (path, status), count in sorted(self.requests.items())
        }
        add("requests_total", "counter", requests)
        seconds = {f'{{path="{path}"}}': spent for path, spent in sorted(self.seconds.items())}
        add("request_seconds_total", "counter", seconds)
        add("batches_total", "counter", {"": worker.batches})
        add("batch_values_total", "counter", {"": worker.values})
        add("batch_seconds_total", "counter", {"": worker.seconds})
        add("waiting", "gauge", {"": worker.waiting})
        return "\n".join([*lines, ""])


def application(served: Served, worker: Worker, access: Access) -> Starlette:
    """What answers the requests.

    Args:
        served: by which files and functions.
        worker: computes the page's views.
        access: who may ask.
    """
    metrics = Metrics(worker)
    views = {VIEWS + name: worker.alone(view) for name, view in served.views.items()}
    endpoints = {
        path: _endpoint(path, call, access, metrics)
        for path, call in {**views, **served.calls}.items()
    }
    return Starlette(
        routes=[
            Route("/health", lambda _: answer({"status": "ok"})),
            Route("/metrics", _file("metrics.txt", metrics.text, access)),
            *(
                Route(path, lambda _, fact=fact: answer(fact()))
                for path, fact in served.facts.items()
            ),
            *(Route(path, one, methods=["POST"]) for path, one in endpoints.items()),
            *(
                Route("/" if name == INDEX else f"/{name}", _file(name, partial(str, text), access))
                for name, text in served.files.items()
            ),
        ],
        middleware=[
            Middleware(Guard, access=access, refused=error_answer),
            Middleware(
                CORSMiddleware,
                allow_origins=[access.origin] if access.origin else [],
                allow_methods=["GET", "POST"],
                allow_headers=["authorization"],
            ),
        ],
        exception_handlers=dict.fromkeys(
            (HTTPException, Exception), lambda _, error: error_answer(error)
        ),
    )


def answer(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON value; in ASCII, since a text may have half of a surrogate pair."""
    return Response(json.dumps(value), status, headers, media_type="application/json")


def error_answer(error: Exception) -> Response:
    """The status and sentence of an error."""
    if isinstance(error, HTTPException):
        headers = dict(error.headers or {})
        return answer({"error": error.detail}, status=error.status_code, headers=headers)
    if isinstance(error, BusyError):
        headers = {"retry-after": str(RETRY_SECONDS)}
        return answer({"error": "Too many wait: ask again later."}, status=429, headers=headers)
    if isinstance(error, ValueError):
        return answer({"error": str(error)}, status=400)
    if isinstance(error, TimeoutError):
        message = f"The answer took more than {MAX_SECONDS:g} seconds: send less at a time."
        return answer({"error": message}, status=503)
    return answer({"error": "The service failed at this request."}, status=500)


def _file(name: str, text: Callable[[], str], access: Access) -> Callable[[Request], Response]:
    media_type = mimetypes.guess_type(name)[0] or "text/plain"

    def file(request: Request) -> Response:
        access.check_key(request.headers.get("authorization"))
        return Response(text(), media_type=media_type, headers=FILE_HEADERS)

    return file


def _endpoint(
    path: str, call: Callable[[Any], Awaitable[Any]], access: Access, metrics: Metrics
) -> Callable[[Request], Awaitable[Response]]:
    """What answers requests by a function, and counts them."""

    async def endpoint(request: Request) -> Response:
        started = time.monotonic()
        try:
            response = await _response(request, call, access)
        except ClientDisconnect:
            response = Response(status_code=CLIENT_LEFT)
        except Exception as error:
            if path.startswith(VIEWS) and isinstance(error, MISREAD):
                logger.warning("a request to %s was not understood: %r", path, error)
                error = ValueError(NOT_UNDERSTOOD)
            response = error_answer(error)
            if response.status_code >= 500:
                logger.exception("a request to %s failed", path)
        metrics.add(path, response.status_code, time.monotonic() - started)
        return response

    return endpoint


async def _response(
    request: Request, call: Callable[[Any], Awaitable[Any]], access: Access
) -> Response:
    """The answer of a function, which is cancelled when the client leaves."""
    body = await received(request)
    access.check_key(request.headers.get("authorization"), body)
    task = asyncio.ensure_future(call(body))
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait(
            {task, leaving}, timeout=MAX_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if not task.done():
            raise ClientDisconnect if leaving.done() else TimeoutError
        found = task.result()
    finally:
        task.cancel()
        leaving.cancel()
    if isinstance(found, AsyncIterator):
        return StreamingResponse(_lines(found), media_type="application/x-ndjson")
    return answer(found)


async def _lines(values: AsyncIterator[Any]) -> AsyncIterator[str]:
    """JSON lines; the last one is an error where one occurs."""
    try:
        async with asyncio.timeout(MAX_SECONDS):
            async for value in values:
                yield json.dumps(value) + "\n"
    except Exception as error:
        logger.warning("an answer ended early: %r", error)
        yield bytes(error_answer(error).body).decode() + "\n"


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def received(request: Request) -> Any:
    """The JSON value or the form of a request; a field that occurs several times is a list.

    Raises:
        ValueError: it is no JSON.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type in ("application/x-www-form-urlencoded", "multipart/form-data"):
        form = await request.form(max_files=0, max_fields=MOST_FIELDS)
        lists = {name: form.getlist(name) for name in form}
        return {name: values if len(values) > 1 else values[0] for name, values in lists.items()}
    body = await request.body()
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("The body of the request is not JSON.") from None
