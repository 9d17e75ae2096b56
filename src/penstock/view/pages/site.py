"""Helpers of all pages: parsing of requests, and responses."""

from __future__ import annotations

import functools
import hmac
import threading
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from penstock._limits import count_in
from penstock._printable import recordable
from penstock._secrets import redact
from penstock.errors import ConfigError, NotFound, PenstockError
from penstock.view.draw.blocks import Fault
from penstock.view.facts.samples import Media
from penstock.view.pages.html import render
from penstock.view.pages.jobs import Jobs
from penstock.view.pages.patience import Late
from penstock.view.pages.targets import Target, Targets

_MOST_FORM_BYTES = 1 << 14
_MOST_NUMBER = 1 << 62

Handler = Callable[[Request], Awaitable[Response]]


MOST_BYTES = 1 << 28
"""Limit on parts that are read whole; parts in their own files are read while they are sent, without memory."""


class Busy(Exception):
    """Signal that the limit is reached."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Held:
    """A part in memory while anybody reads it."""

    media: Media


class InHand:
    """The parts that a server is sending.

    Args:
        most_bytes: limit on their bytes, without the part that is being read when it is reached.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held: weakref.WeakSet[Held] = weakref.WeakSet()
        self._lock = threading.Lock()

    def take(self, read: Callable[[], Media]) -> Held:
        """Return the result of `read`; raise `Busy` if slow clients hold too much."""
        with self._lock:
            if sum(len(one.media.data.head) for one in self._held) >= self._most_bytes:
                raise Busy
        held = Held(read())
        with self._lock:
            self._held.add(held)
        return held


@dataclass(frozen=True, slots=True)
class Site:
    """State of a server: its data, its jobs, the secret for starting jobs, large parts."""

    targets: Targets
    jobs: Jobs
    form_token: str
    in_hand: InHand = field(default_factory=InHand)


def site_of(request: Request) -> Site:
    return request.app.state.site


def target_of(request: Request) -> Target:
    """Return the dataset or run that a path names; raise `NotFound`."""
    return site_of(request).targets.named(request.path_params["name"])


def answer(request: Request, template: str, status: int = 200, **facts: Any) -> HTMLResponse:
    """Return a page, or a fragment of one: its template with these facts and those of every page."""
    return HTMLResponse(render(template, {**_common(request), **facts}), status)


def _path(request: Request) -> str:
    return request.scope["path"].removeprefix(request.scope.get("root_path", ""))


def root_of(request: Request) -> str:
    """Return the relative address of the first page."""
    return "../" * (_path(request).count("/") - 1) or "./"


def _common(request: Request) -> dict[str, Any]:
    site = site_of(request)
    return {
        "root": root_of(request),
        "query": dict(request.query_params),
        "here": _path(request).rpartition("/")[2] or "./",
        "site": site,
        "targets": list(site.targets),
        "target": None,
        "tab": "",
        "refresh": False,
        "form_token": site.form_token,
        "with_query": functools.partial(with_query, request),
    }


def with_query(request: Request, **changed: Any) -> str:
    """Return the query of this page with some values changed; None removes one."""
    query = {**request.query_params, **changed}
    return "?" + urlencode({name: value for name, value in query.items() if value is not None})


def text_of(request: Request, name: str) -> str | None:
    """Return a value of the query; None if it is missing or empty."""
    value = request.query_params.get(name, "").strip()
    return value or None


def number_of(request: Request, name: str, default: int | None = None, least: int = 0) -> int | None:
    """Return a whole number of the query; raise `ConfigError`."""
    value = text_of(request, name)
    return default if value is None else _number(name, value, least)


def path_number_of(request: Request, name: str) -> int:
    """Return a whole number of the path; raise `ConfigError`."""
    return _number(name, request.path_params[name], 0)


def _number(name: str, value: str, least: int) -> int:
    plain = value.replace(",", "").replace("_", "")
    number = count_in(plain, _MOST_NUMBER)
    if number is None or number < least:
        raise ConfigError(f"invalid {name}", found=value[:80], expected=f"an integer of at least {least}")
    return number


def chosen_of(request: Request, name: str, values: tuple[str, ...]) -> str:
    """Return one of some words of the query, the first if it is missing; raise `ConfigError`."""
    value = text_of(request, name) or values[0]
    if value not in values:
        raise ConfigError(f"invalid {name}", found=value[:80], expected=" | ".join(values))
    return value


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        ConfigError: it isn't a form of this server's pages, or is too large.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_FORM_BYTES:
            raise ConfigError("the form is too long")
    form = {name: values[0] for name, values in parse_qs(body.decode(errors="replace")).items()}
    given = form.pop("token", "").encode()
    if not hmac.compare_digest(given, site_of(request).form_token.encode()):
        raise ConfigError("the request wasn't sent by a page of this server", hint="Reload the page")
    return form


def handled(handler: Handler) -> Handler:
    """Return the handler with errors converted to pages: no data can end the server."""

    @functools.wraps(handler)
    async def handling(request: Request) -> Response:
        try:
            return await handler(request)
        except Late:
            target = _known(request)
            told = None if target is None else site_of(request).targets.far(target, text_of(request, "split"))
            return answer(request, "late.html", 202, refresh=True, target=target, told=told)
        except Exception as error:
            return failed(request, error)

    return handling


def failed(request: Request, error: Exception) -> HTMLResponse:
    status = 404 if isinstance(error, NotFound) else 400 if isinstance(error, ConfigError) else 200
    fragment = "part" in request.query_params
    template = "_fault.html" if fragment else "fault.html"
    return answer(request, template, 200 if fragment else status, fault=fault_of(error), target=_known(request))


def fault_of(error: BaseException) -> Fault:
    """Return an error for display, without secrets."""
    if not isinstance(error, PenstockError):
        what = str(error) or type(error).__name__
        return Fault(_text(what if isinstance(error, OSError) else f"{type(error).__name__}: {what}") or "")
    place = None if error.offset_bytes is None else f"byte {error.offset_bytes:,}"
    return Fault(_text(error.what) or "", path=_text(error.path), place=place, found=_text(error.found),
                 expected=_text(error.expected), hint=_text(error.hint))  # fmt: skip


def _text(text: object) -> str | None:
    return None if text is None else redact(recordable(str(text)[:2000]))


def _known(request: Request) -> Target | None:
    try:
        return target_of(request)
    except (NotFound, KeyError):
        return None


def seen_other(location: str) -> Response:
    """Redirect, relative to the path of the form."""
    return RedirectResponse(location, 303)
