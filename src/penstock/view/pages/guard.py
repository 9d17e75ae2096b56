"""Access control and security headers of every page.

Pages require a random token, the first part of their path, even on loopback: login nodes are shared. Foreign host names
that resolve to the server are rejected, so that foreign pages can't read ours. Nothing in the data is ever executed:
responses have a content type, and allow no scripts except ours.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; object-src 'none'"
)
DATA_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"
"""Policy of everything that isn't a page: contents of data run nothing and load nothing, even when opened directly."""

MEDIA_POLICY = "default-src 'none'; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""The same for pictures, sound and videos, which browsers show in their own page."""

_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
MOST_REQUESTS = 128
"""Limit on parallel requests with the token: further ones get a response to retry."""

_METHODS = ("GET", "HEAD", "POST")
_NAVIGATIONS = ("navigate",)


@dataclass(frozen=True, slots=True)
class Hosts:
    """Host names that the server answers to.

    Attributes:
        names: in lower case, without a port, which a tunnel may change.
        any_address: whether to accept every address, but not other names, if the server listens on all.
    """

    names: frozenset[str]
    any_address: bool = False

    def allow(self, header: str) -> bool:
        """Return whether a Host header names this server."""
        name = _without_port(header.strip().lower())
        return name in self.names or (self.any_address and _is_address(name))


def hosts_of(host: str) -> Hosts:
    """Return the names of a server that listens on `host`."""
    ours = {"127.0.0.1", "localhost", "::1"}
    if is_loopback(host):
        return Hosts(frozenset(ours | {host.lower()}))
    return Hosts(frozenset(ours | {one.lower() for one in (host, socket.gethostname(), socket.getfqdn())}), True)


def is_loopback(host: str) -> bool:
    """Return whether a name or an address is only reachable from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Guard:
    """Application protected by a token; see the module."""

    def __init__(self, app: App, token: str, hosts: Hosts) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = hosts
        self._under_way = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        refused = self._refused(scope, headers)
        if refused is not None:
            await _answer(send, *refused, [(b"connection", b"close")])
            return
        first, slash, rest = scope["path"][1:].partition("/")
        if not slash:
            await _answer(send, 307, b"", [(b"location", first.encode() + b"/")])
            return
        if self._under_way >= MOST_REQUESTS:
            await _answer(send, 503, b"Too many pages are asked for at once.\n", [(b"retry-after", b"1")])
            return
        self._under_way += 1
        try:
            await self._app({**scope, "root_path": f"/{first}", "path": f"/{first}/{rest}"}, receive, _told(send))
        finally:
            self._under_way -= 1

    def _refused(self, scope: Message, headers: dict[bytes, bytes]) -> tuple[int, bytes] | None:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not self._hosts.allow(hosts[0].decode("latin-1")):
            return 421, b"This server does not go by that name.\n"
        first = scope["path"][1:].partition("/")[0]
        if not hmac.compare_digest(first.encode("utf-8", "surrogatepass"), self._token):
            return 404, b"Nothing is here. The address that `penstock view` printed has a token in it.\n"
        if scope["method"] not in _METHODS:
            return 405, b"Pages are read.\n"
        site, mode = headers.get(b"sec-fetch-site", b"none"), headers.get(b"sec-fetch-mode", b"").decode("latin-1")
        if site not in (b"none", b"same-origin") and (mode not in _NAVIGATIONS or scope["method"] == "POST"):
            return 403, b"Asked for by another page.\n"
        origin = headers.get(b"origin")
        if origin is not None and scope["method"] == "POST" and origin.partition(b"://")[2] != hosts[0]:
            return 403, b"Asked for by another page.\n"
        return None


def _told(send: Send) -> Send:
    """Return a `send` that adds the security headers."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(name, value) for name, value in message.get("headers", ()) if name != b"server"]
            known = dict(headers)
            policy = _policy(known.get(b"content-type", b""))
            more = [*_ALWAYS, (b"content-security-policy", policy.encode())]
            more += [] if b"cache-control" in known else [(b"cache-control", b"no-store")]
            message = {**message, "headers": [*headers, *more]}
        await send(message)

    return sending


def _policy(kind: bytes) -> str:
    if kind.startswith(b"text/html"):
        return PAGE_POLICY
    is_media = kind.startswith((b"image/", b"audio/", b"video/")) and b"svg" not in kind
    return MEDIA_POLICY if is_media else DATA_POLICY


async def _answer(send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    told = _told(send)
    plain = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await told({"type": "http.response.start", "status": status, "headers": [*plain, *headers]})
    await told({"type": "http.response.body", "body": body})


def _without_port(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header if header.count(":") > 1 else header.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
