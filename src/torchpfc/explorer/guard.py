"""What stands in front of the server: who may ask, how much they may send, and what a browser may do with an answer."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Guard:
    """Lets through requests of the page itself, of a size that it can have.

    A page of another site could make a browser send requests here. It cannot change two headers: `Host`, which must
    name this machine by its number or as it was called at the start, so that another name cannot be pointed here; and
    `Origin`, which must be that of the page. What changes something must be JSON, which other sites may not send.

    Args:
        app: What answers.
        host: The address that the server listens on.
        most_bytes: The largest body of a request.
    """

    app: ASGIApp
    host: str
    most_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or refuses it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope["method"], headers)
        body = None if refusal else await self._read(receive, headers)
        if body is None:
            status, problem = refusal or (413, f"the body must have at most {self.most_bytes} bytes")
            await JSONResponse({"problem": problem}, status)(scope, receive, _with_headers(send))
        else:
            await self.app(scope, _replay(body, receive), _with_headers(send))

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        if any(len(headers.getlist(name)) > 1 for name in ("host", "origin", "content-length")):
            return 400, "the headers Host, Origin and Content-Length must each come once"
        host = headers.get("host", "")
        if not is_own_name(host, self.host):
            return 400, "the header Host must name this machine"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, "the header Origin must be that of the page"
        if method not in ("GET", "HEAD", "POST"):
            return 405, "the method must be GET, HEAD or POST"
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and kind != "application/json":
            return 415, "the body must be application/json"
        return None

    async def _read(self, receive: Receive, headers: Headers) -> bytes | None:
        """The whole body; None where it is too large, its header says so, or it does not come to its end."""
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > self.most_bytes:
            return None
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":  # the other end has gone, and the rest with it
                return None
            body += bytes(message.get("body", b""))
            if len(body) > self.most_bytes:
                return None
            if not message.get("more_body", False):
                return body


def is_own_name(header: str, host: str) -> bool:
    """Whether a Host header names this machine.

    Args:
        header: The header, with a port or without.
        host: What the server listens on. On a loopback address, only names of that kind will do.

    Example:
        >>> is_own_name("localhost:8765", "127.0.0.1"), is_own_name("evil.example:8765", "127.0.0.1")
        (True, False)
        >>> is_own_name("192.168.0.7:8765", "127.0.0.1"), is_own_name("192.168.0.7:8765", "0.0.0.0")
        (False, True)
    """
    try:
        name = urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return False
    if is_loopback(name):
        return True
    if is_loopback(host):
        return False
    return name == host.lower() or _address(name) is not None


def is_loopback(name: str) -> bool:
    """Whether a name or an address is that of the machine itself, and of no other."""
    address = _address(name)
    return name.lower() == "localhost" if address is None else address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Gives a body that has been read, then whatever comes next."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return sent
