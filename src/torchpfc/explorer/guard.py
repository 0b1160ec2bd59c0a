"""What stands in front of the server: who may ask, how much they may send, and what a browser may do with an answer."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
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

    app: App
    host: str
    most_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or refuses it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope["method"], headers)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        body = await self._read(receive)
        if body is None:
            await _answer(send, 413, f"the body must have at most {self.most_bytes} bytes")
            return
        await self.app(scope, _replay(body, receive), _with_headers(send))

    def _refusal(self, method: str, headers: dict[bytes, str]) -> tuple[int, str] | None:
        host = headers.get(b"host", "")
        if not is_own_name(host, self.host):
            return 400, "the header Host must name this machine"
        origin = headers.get(b"origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, "the header Origin must be that of the page"
        if method not in ("GET", "HEAD", "POST"):
            return 405, "the method must be GET, HEAD or POST"
        kind = headers.get(b"content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and kind != "application/json":
            return 415, "the body must be application/json"
        length = headers.get(b"content-length", "0")
        if not length.isdecimal() or int(length[:20]) > self.most_bytes:
            return 413, f"the body must have at most {self.most_bytes} bytes"
        return None

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body; None where it is too large, whatever its headers say."""
        body = b""
        while True:
            message = await receive()
            body += bytes(message.get("body", b""))
            if len(body) > self.most_bytes:
                return None
            if message["type"] != "http.request" or not message.get("more_body", False):
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
            message = {**message, "headers": [*message["headers"], *HEADERS.items()]}
        await send(message)

    return sent


async def _answer(send: Send, status: int, problem: str) -> None:
    body = b'{"problem":"%s"}' % problem.encode()
    kind = (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())
    await _with_headers(send)({"type": "http.response.start", "status": status, "headers": list(kind)})
    await send({"type": "http.response.body", "body": body})
