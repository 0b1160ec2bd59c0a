"""How long the server waits for a request that has begun."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
"""What a request may take to arrive, from the first byte of its headers to the last of its body."""


class ImpatientProtocol(H11Protocol):
    """HTTP that hangs up where a request does not come to an end; uvicorn alone would keep the connection for ever."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Waits on, or no longer where the request is there."""
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._wait()
        else:
            self._end_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no longer."""
        self._end_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _end_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
