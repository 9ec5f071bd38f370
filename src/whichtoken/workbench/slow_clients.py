"""Connections that hold a place and do not move: half a request, a body that trickles, an answer that nobody reads.

uvicorn closes a connection that is idle between two requests, and nothing else. Here every connection is looked at again
and again: where it is the client's turn, there must be progress since the last look. When all places are taken, the oldest
connection without a whole request makes room, so that half-sent requests lock nobody out.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

LOOK_SECONDS = 10.0  # between two looks at a connection
LEAST_BYTES = 20_000  # of a body that must arrive between two looks


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP protocol, which ends connections that do not move."""

    look_seconds = LOOK_SECONDS
    _received = _drained = 0
    _seen: tuple[str, Any, int, int] | None = None
    _next_look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.opened = time.monotonic()
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._make_room()
        self._next_look = self.loop.call_later(self.look_seconds, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)

    def resume_writing(self) -> None:
        self._drained += 1
        super().resume_writing()

    def end(self) -> None:
        """End the connection; closing one with an answer in its buffer would wait for whoever does not read."""
        self.connections.discard(self)
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()  # what the system still has to send arrives

    def _look(self) -> None:
        before, self._seen = self._seen, self._client_turn()
        if _is_stuck(before, self._seen):
            self.end()
        else:
            self._next_look = self.loop.call_later(self.look_seconds, self._look)

    def _client_turn(self) -> tuple[str, Any, int, int] | None:
        """What the client has to do next, for which request, and how far it is; nothing where it is our turn."""
        unread = self.transport.get_write_buffer_size()
        if unread:
            return "read", self.cycle, self._drained, -unread
        if self.conn.their_state is h11.IDLE:
            return "ask", self.cycle, 0, 0
        if self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused:
            answered = self.cycle.response_complete  # then nobody waits for the rest
            return "send", self.cycle, 0, 0 if answered else self._received // LEAST_BYTES
        return None

    def _make_room(self) -> None:
        """End the connection that has waited longest for a whole request; those with one keep their places."""
        others = [one for one in self.connections if isinstance(one, TimedProtocol) and one is not self]
        idle = [one for one in others if one.conn.their_state is h11.IDLE]
        sending = [one for one in others if one.conn.their_state is h11.SEND_BODY]
        if idle or sending:
            min(idle or sending, key=lambda one: one.opened).end()


def _is_stuck(before: tuple[str, Any, int, int] | None, now: tuple[str, Any, int, int] | None) -> bool:
    """Whether the client had the same thing to do at both looks, and is no further."""
    return now is not None and before is not None and before[:3] == now[:3] and now[3] <= before[3]
