import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

uvicorn = pytest.importorskip("uvicorn")

from torchpfc.explorer import listen, protocol  # noqa: E402
from torchpfc.explorer.guard import Guard  # noqa: E402


async def answer(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def serving() -> Iterator[tuple[str, int]]:
    config = uvicorn.Config(
        Guard(answer, "127.0.0.1", 100), http=protocol.ImpatientProtocol, lifespan="off", log_level="critical"
    )
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join(timeout=10)


def seconds_until_hung_up(address: tuple[str, int], begin: bytes, more: bytes) -> float:
    """How long a connection lasts whose request gets one more piece now and then."""
    start = time.monotonic()
    with socket.create_connection(address) as connection:
        connection.settimeout(0.05)
        connection.sendall(begin)
        while time.monotonic() - start < 5:
            try:
                connection.sendall(more)
                if not connection.recv(1000):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        return time.monotonic() - start


BODY = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
WHOLE = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def test_a_request_that_never_ends_is_hung_up_on(monkeypatch):
    monkeypatch.setattr(protocol, "REQUEST_SECONDS", 0.3)
    with serving() as address:
        assert 0.2 < seconds_until_hung_up(address, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"A: a\r\n") < 2
        assert 0.2 < seconds_until_hung_up(address, BODY, b" ") < 2
        assert 0.2 < seconds_until_hung_up(address, WHOLE + b"GET ", b"/") < 2


def test_a_connection_that_asks_again_and_again_stays(monkeypatch):
    monkeypatch.setattr(protocol, "REQUEST_SECONDS", 0.3)
    with serving() as address, socket.create_connection(address) as connection:
        for _ in range(4):
            connection.sendall(WHOLE)
            found = b""
            while not found.endswith(b"ok"):
                found += connection.recv(1000)
            assert found.startswith(b"HTTP/1.1 200")
            time.sleep(0.12)
