"""Responses that aren't pages: parts of samples, small pictures of them, and the data of plots as CSV."""

from __future__ import annotations

import csv
import functools
import io
import re
import threading
from collections.abc import AsyncIterator, Iterable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.errors import Corrupt, NotFound, PenstockError
from penstock.view import facts
from penstock.view.facts.batches import sample_of
from penstock.view.facts.media import OTHER, drawn, small_picture
from penstock.view.facts.samples import file_name
from penstock.view.pages.patience import WAIT_SECONDS
from penstock.view.pages.runs import asked_of, opened_as
from penstock.view.pages.site import Busy, Held, number_of, path_number_of, site_of, target_of, text_of

_CHUNK_BYTES = 1 << 18
_SMALL_BYTES = 1 << 26
_SIDES = (320, 1600)
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_ONE_AT_A_TIME = threading.Semaphore(1)
"""Scaling a picture takes 4 bytes per pixel, so only one at a time."""

_NONE = b"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32" width="160" height="160">
<path d="M6 6h20v20H6z M6 26L26 6" fill="none" stroke="#9a9a9a" stroke-width=".5"/></svg>"""
_DAMAGED = b"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32" width="160" height="160">
<path d="M9 5h14v14H9z M9 19L23 5" fill="none" stroke="#9a9a9a" stroke-width=".5"/>
<g font-family="sans-serif" font-size="3" text-anchor="middle" fill="#808080">
<text x="16" y="25">damaged</text><text x="16" y="29">it can't be drawn</text></g></svg>"""
"""Placeholder for missing and impossible pictures."""

_BUSY = "Too many large parts are being read. Try again.\n"


async def part(request: Request) -> Response:
    """Send a part of a sample with its sniffed type; types that a browser must not show are downloads."""
    target, name, index = target_of(request), request.path_params["part"], path_number_of(request, "index")
    split = text_of(request, "split")
    site = site_of(request)
    ask = lambda: site.in_hand.take(lambda: facts.media_of(site.targets.dataset(target, split), index, name))  # noqa: E731
    try:
        held = await target.patience.within(WAIT_SECONDS, ("part", split, index, name), ask)
    except Busy:
        return Response(_BUSY, 503, {"content-type": "text/plain; charset=utf-8", "retry-after": "10"})
    found, size = held.media, held.media.data.size_bytes
    start, stop, status = _range(request.headers.get("range"), size)
    shown = "attachment" if found.media_type == OTHER or text_of(request, "save") else "inline"
    saved = file_name(name, found.media_type).encode("ascii", "replace").decode().replace("?", "_") or "part"
    headers = {
        "content-type": found.media_type,
        "content-length": str(max(0, stop - start)),
        "accept-ranges": "bytes",
        "content-disposition": f'{shown}; filename="{saved}"',
    }
    if status == 416:
        return Response(b"", 416, {"content-range": f"bytes */{size}"})
    if status == 206:
        headers["content-range"] = f"bytes {start}-{stop - 1}/{size}"
    if request.method == "HEAD":
        return Response(b"", status, headers)
    return StreamingResponse(_chunks(held, start, stop), status, headers)


async def small(request: Request) -> Response:
    """Send a small picture of a part, or a placeholder."""
    target, name, index = target_of(request), request.path_params["part"], path_number_of(request, "index")
    split, side = text_of(request, "split"), _SIDES[bool(number_of(request, "large", 0))]
    site = site_of(request)

    def ask() -> bytes | None:
        media = facts.media_of(site.targets.dataset(target, split), index, name)
        if media.data.size_bytes > _SMALL_BYTES:
            return None
        with _ONE_AT_A_TIME:
            try:
                return drawn(bytes(media.data.read(0, media.data.size_bytes)), side, 1 << 19)
            except Corrupt:
                return _DAMAGED
            except (PenstockError, ImportError):
                return None

    return _picture(await target.patience.within(WAIT_SECONDS, ("small", split, index, name, side), ask))


async def decoded(request: Request) -> Response:
    """Send a small picture of a decoded part of a run, or a placeholder."""
    target, name, position = target_of(request), request.path_params["part"], path_number_of(request, "position")
    site = site_of(request)

    def ask() -> bytes | None:
        value = sample_of(site.targets.run(target), position).get(name)
        with _ONE_AT_A_TIME:
            return small_picture(value, _SIDES[0])

    return _picture(await target.patience.within(WAIT_SECONDS, ("small", position, name), ask))


def _picture(made: bytes | None) -> Response:
    """Send a picture, or our own placeholder: an SVG from the data is never a document."""
    made = _NONE if made is None else made
    kind = "image/svg+xml" if made in (_NONE, _DAMAGED) else "image/jpeg"
    return Response(made, headers={"content-type": kind, "cache-control": "private, max-age=600"})


async def lengths(request: Request) -> Response:
    found = await _overview(request)
    if found.lengths is None:
        raise NotFound("lengths are unknown")
    unit = found.lengths.unit
    rows = ((one.start, one.stop, one.count) for one in found.lengths.bins)
    return _csv("lengths.csv", (f"from_{unit}", f"to_{unit}", "samples"), rows)


async def shards(request: Request) -> Response:
    found = await _overview(request)
    if found.shards is None:
        raise NotFound("shards are unknown")
    rows = ((one.first, one.last, one.fewest, one.most) for one in found.shards.bars)
    return _csv("shards.csv", ("first", "last", "fewest_samples", "most_samples"), rows)


async def curves(request: Request) -> Response:
    target, asked = target_of(request), asked_of(request)
    steps = number_of(request, "steps", None, 1)
    ask = lambda: facts.curves(opened_as(request, target, asked), steps)  # noqa: E731
    found = await target.patience.within(WAIT_SECONDS, ("curves", steps, *asked), ask)
    rows = (
        (step, one.path, one.samples[at], one.epochs[at], "" if one.tokens is None else one.tokens[at], one.share[at])
        for one in found.curves
        for at, step in enumerate(found.steps)
    )
    return _csv("curves.csv", ("step", "source", "samples", "epochs", "tokens", "share"), rows)


async def _overview(request: Request) -> Any:
    target, split = target_of(request), text_of(request, "split")
    ask = functools.partial(_ask, site_of(request), target, split)
    return await target.patience.within(WAIT_SECONDS, ("overview", split), ask)


def _ask(site: Any, target: Any, split: str | None) -> Any:
    return facts.overview(site.targets.dataset(target, split))


def _csv(name: str, head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> Response:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([[_cell(one) for one in row] for row in rows])
    headers = {"content-type": "text/csv; charset=utf-8", "content-disposition": f'attachment; filename="{name}"'}
    return Response(out.getvalue(), headers=headers)


def _cell(value: Any) -> Any:
    """Return a value; text that a spreadsheet would run as a formula is marked as text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _range(header: str | None, size: int) -> tuple[int, int, int]:
    """Return start, stop and status for a Range header; an invalid one is ignored."""
    asked = None if header is None else _RANGE.fullmatch(header.strip())
    if asked is None or not (asked[1] or asked[2]):
        return 0, size, 200
    start = int(asked[1]) if asked[1] else max(0, size - int(asked[2]))
    stop = min(size, int(asked[2]) + 1) if asked[1] and asked[2] else size
    if start >= size or stop <= start:
        return 0, 0, 416
    return start, stop, 206


async def _chunks(held: Held, start: int, stop: int) -> AsyncIterator[bytes]:
    while start < stop:
        chunk = await run_in_threadpool(held.media.data.read, start, min(_CHUNK_BYTES, stop - start))
        if not chunk:
            return
        yield bytes(chunk)
        start += len(chunk)
