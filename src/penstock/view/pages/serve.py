"""`penstock view`: starts the server, reports its address, and serves until it is stopped."""

from __future__ import annotations

import secrets
import signal
import socket
from collections.abc import Callable
from typing import Any

from penstock._optional import require
from penstock.errors import ConfigError
from penstock.view.pages.connections import Connections
from penstock.view.pages.guard import Guard, hosts_of
from penstock.view.pages.targets import Settings, Targets

_MOST_ACCEPTED = 128
"""Limit on open connections: beyond this, those that wait too long are closed."""

_GRACE_SECONDS = 1


def view(
    given: tuple[str, ...],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    settings: Settings,
    ready: Callable[[str], object],
) -> None:
    """Serve the pages of datasets and runs until SIGINT or SIGTERM.

    Memory: each page is bounded. At most three samples of a dataset, of 64 MiB stored bytes each, are read at once, and
    one
    picture of at most 2^26 pixels is scaled at a time. That is about 300 MB in addition to the indexes, and 256 MiB
    more if
    many clients read large parts slowly.

    Raises:
        MissingExtra: the packages of the extra `view` are not installed.
        NotFound: one of the paths doesn't exist.
        ConfigError: listening at the address isn't possible.
    """
    uvicorn: Any = require("uvicorn", extra="view")
    for name in ("starlette", "jinja2"):
        require(name, extra="view")
    from uvicorn.protocols.http.h11_impl import H11Protocol  # not required by other commands

    from penstock.view.pages.app import make_app

    app = make_app(Targets(given, settings))
    token = secrets.token_urlsafe(24)
    listening = _listen(host, port)
    connections = Connections(Guard(app, token, hosts_of(host)))
    http: Any = connections.protocol(H11Protocol)
    config = uvicorn.Config(
        connections, log_level="error", access_log=False, lifespan="off", ws="none", http=http, server_header=False,
        backlog=_MOST_ACCEPTED, timeout_graceful_shutdown=_GRACE_SECONDS,
        proxy_headers=False,
    )  # fmt: skip
    server = uvicorn.Server(config)

    def stop(_number: int, _frame: object) -> None:
        server.should_exit = True

    # uvicorn re-raises caught signals after it has stopped: a requested end isn't an error.
    before = {one: signal.signal(one, stop) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        shown, number = (f"[{host}]" if ":" in host else host), listening.getsockname()[1]
        ready(f"http://{shown}:{number}/{token}/")
        server.run(sockets=[listening])
    finally:
        app.state.jobs.close()
        listening.close()
        for one, handler in before.items():
            signal.signal(one, handler)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_MOST_ACCEPTED)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            "can't listen on this address", found=f"{host}:{port}: {why}", hint="Choose another --port or --host"
        ) from None
