"""Who may ask: names of this service, pages of other sites, keys; how much a request may send."""

import asyncio
import base64
import hmac
import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_SECONDS = 30.0  # in which a client has to send its request


@dataclass(frozen=True)
class Access:
    """Who may ask a service.

    Attributes:
        host: that it listens on.
        origin: of another site whose pages may ask, in lower case as browsers send it, such as
            `https://example.org`; None: no site. Its name is also a name of this service, for a
            reverse proxy.
        keys: one of them is needed; none: all may ask.
        most_bytes: of a request.
    """

    host: str = "127.0.0.1"
    origin: str | None = None
    keys: tuple[str, ...] = ()
    most_bytes: int = 2**20

    def check_names(self, host: str, origin: str | None) -> None:
        """Refuse another name of this address (DNS rebinding), and a page of another site.

        Args:
            host: by which the client knows this service.
            origin: of the page that asks; None: none does.

        Raises:
            HTTPException: the host is neither an IP address, localhost, nor that of an option; or
                the page is none of this service, nor of the site that may ask.
        """
        name = urlsplit(f"//{host}").hostname or ""
        named = {"localhost", self.host.lower(), urlsplit(self.origin or "").hostname}
        if name not in named:
            try:
                ipaddress.ip_address(name)
            except ValueError:
                raise HTTPException(403, "This service has another name.") from None
        if origin not in (None, self.origin) and urlsplit(origin).netloc != host:
            raise HTTPException(403, "Pages of other sites may not ask this service.")

    def check_key(self, header: str | None, body: Any = None) -> None:
        """Refuse a request without a key.

        Args:
            header: `Authorization`: Bearer with a key, or Basic with a key as the password.
            body: its `api_key`, for clients of LibreTranslate.

        Raises:
            HTTPException: a key is needed, and none of ours is given.
        """
        given = [str(body["api_key"])] if isinstance(body, dict) and "api_key" in body else []
        scheme, _, value = (header or "").partition(" ")
        if scheme.lower() == "bearer":
            given += [value, value.encode("latin-1").decode("utf-8", "replace")]  # as curl sends it
        elif scheme.lower() == "basic":
            with suppress(ValueError):
                given.append(base64.b64decode(value).decode().partition(":")[2])
        pairs = [
            (one.encode("utf-8", "replace"), key.encode()) for one in given for key in self.keys
        ]
        if self.keys and not any([hmac.compare_digest(*pair) for pair in pairs]):
            headers = {"www-authenticate": 'Basic realm="hf_vanilla"'}
            raise HTTPException(401, "A key is needed: give api_key.", headers)


class Guard:
    """Checks host, origin and size of each request before anything else reads it.

    Args:
        app: what answers.
        access: who may ask.
        refused: makes the answer to an error.
    """

    def __init__(self, app: ASGIApp, access: Access, refused: Any) -> None:
        self._app, self._access, self._refused = app, access, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            try:
                self._access.check_names(headers.get("host", ""), headers.get("origin"))
                receive = self._limited(receive, int(headers.get("content-length") or 0))
            except (HTTPException, ValueError) as error:  # urlsplit: a name such as "["
                await self._refused(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _limited(self, receive: Receive, announced: int) -> Receive:
        """The body, refused if it is too large or late; `announced`: its Content-Length, or 0."""
        most, size, is_whole = self._access.most_bytes, 0, False
        end = asyncio.get_running_loop().time() + BODY_SECONDS

        async def limited() -> Message:
            nonlocal size, is_whole
            if is_whole:  # the only message after it is that the client leaves
                return await receive()
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "The request did not arrive in time.") from None
            size += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            if max(size, announced) > most:
                limit = f"{most / 2**20:g} MiB"
                raise HTTPException(413, f"A request has at most {limit}: send less at a time.")
            return message

        return limited
