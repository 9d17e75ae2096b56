"""Connections of the server: clients that send no request, or read no answer, are disconnected.

Our requests arrive within milliseconds. If too many connections wait, the oldest ones are closed first: nobody can
block others by opening sockets, with or without the token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from penstock.view.pages.guard import App, Message, Receive, Send

Key: TypeAlias = tuple[object, object]

MOST_WAITING = 64
"""Limit on connections without a running request; each may hold 64 KiB of an incomplete one."""

REQUEST_SECONDS = 20.0
"""Time limit for a connection until its request is complete: headers and body."""

TURNS_TO_BEGIN = 3
"""Turns of the event loop from the opening of a connection until an available request was read and started."""

SEND_SECONDS = 60.0
"""Time limit for a client to read the 64 KiB that are buffered."""


@dataclass(frozen=True, slots=True)
class Limits:
    most_waiting: int = MOST_WAITING
    request_seconds: float = REQUEST_SECONDS
    send_seconds: float = SEND_SECONDS


class Connections:
    """Application that closes connections of clients that make it wait."""

    def __init__(self, app: App, limits: Limits | None = None) -> None:
        self._app = app
        self._limits = limits or Limits()
        self._open: dict[Key, asyncio.Transport] = {}
        self._waiting: dict[Key, _Wait] = {}  # the oldest first
        self._waits_so_far = 0

    def protocol(self, inner: Callable[..., asyncio.Protocol]) -> Callable[..., asyncio.Protocol]:
        """Return the server's protocol, with connections tracked by this object."""

        def make(**given: Any) -> asyncio.Protocol:
            return _Known(inner(**given), self)

        return make

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle a request; the connection waits until the whole body has arrived, and again after the response."""
        key = (_address(scope.get("client")), _address(scope.get("server")))
        transport = self._open.get(key)
        if transport is None:
            await self._app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()

        async def sending(message: Message) -> None:
            late = loop.call_later(self._limits.send_seconds, transport.abort)
            try:
                await send(message)
            finally:
                late.cancel()

        async def receiving() -> Message:
            message = await receive()
            if not message.get("more_body", False):
                self._waits_no_more(key)
            return message

        if not _has_body(scope):
            self._waits_no_more(key)
        try:
            await self._app(scope, receiving, sending)
        finally:
            if key in self._open and not transport.is_closing():
                self._waits(key, transport)

    def opened(self, transport: asyncio.Transport) -> None:
        key = _key(transport)
        self._open[key] = transport
        self._waits(key, transport)

    def closed(self, transport: asyncio.Transport) -> None:
        key = _key(transport)
        self._open.pop(key, None)
        self._waits_no_more(key)

    def _waits(self, key: Key, transport: asyncio.Transport) -> None:
        self._waits_no_more(key)
        late = asyncio.get_running_loop().call_later(self._limits.request_seconds, transport.abort)
        self._waits_so_far += 1
        self._waiting[key] = _Wait(self._waits_so_far, late)
        if len(self._waiting) > self._limits.most_waiting:
            self._end_the_oldest(self._waits_so_far, TURNS_TO_BEGIN)

    def _end_the_oldest(self, last: int, turns: int) -> None:
        """Close the excess connections up to this number, after each had its turns to be read and started."""
        if turns:
            asyncio.get_running_loop().call_soon(self._end_the_oldest, last, turns - 1)
            return
        while len(self._waiting) > self._limits.most_waiting:
            oldest, wait = next(iter(self._waiting.items()))
            if wait.number > last:
                return
            self._waits_no_more(oldest)
            self._open[oldest].abort()

    def _waits_no_more(self, key: Key) -> None:
        wait = self._waiting.pop(key, None)
        if wait is not None:
            wait.late.cancel()


@dataclass(frozen=True, slots=True)
class _Wait:
    """Number of connections waiting before it and with it, and its timer."""

    number: int
    late: asyncio.TimerHandle


class _Known(asyncio.Protocol):
    """Protocol that reports the beginning and the end of a connection."""

    def __init__(self, inner: asyncio.Protocol, connections: Connections) -> None:
        self._inner = inner
        self._connections = connections
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._inner.connection_made(transport)
        self._connections.opened(cast("asyncio.Transport", transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.closed(self._transport)
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


def _has_body(scope: Message) -> bool:
    """Return whether a request announces a body: it is only complete with all of the body."""
    headers = dict(scope.get("headers", ()))
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip(b"0") != b""


def _key(transport: asyncio.Transport) -> Key:
    return _address(transport.get_extra_info("peername")), _address(transport.get_extra_info("sockname"))


def _address(found: Any) -> object:
    """Return host and port, without the further fields of IPv6."""
    return tuple(found[:2]) if found else found
