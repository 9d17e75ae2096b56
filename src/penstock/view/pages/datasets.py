"""Pages of datasets: the catalog, the overview, lists of samples, single samples, tokens."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.errors import ConfigError, NotFound, PenstockError
from penstock.view import facts
from penstock.view.draw import sections
from penstock.view.draw.blocks import Fault, to_json
from penstock.view.draw.words import counted
from penstock.view.facts.by_share import lines_at
from penstock.view.facts.dataset import NO_INDEX, count_of, numbered
from penstock.view.facts.panel import Panels
from penstock.view.facts.samples import document_tokens, raw_sample
from penstock.view.facts.shelves import OnShelf
from penstock.view.pages import runs
from penstock.view.pages.jobs import Progress
from penstock.view.pages.patience import WAIT_SECONDS, Late
from penstock.view.pages.site import (
    answer,
    chosen_of,
    number_of,
    path_number_of,
    root_of,
    site_of,
    target_of,
    text_of,
)
from penstock.view.pages.targets import Target

PAGE = 50
MOST_ON_PAGE = 200
_PART = re.compile(r"\d{3,}(-of-\d+)?")
LEAST_PARTS = 3
"""Files with numbered names that a catalog shows as one row."""

_WAYS = ("auto", "list", "grid", "table")
_MOST_COLUMNS = 12
_TOKENS = 1024

Way = Literal["list", "grid", "table"]


async def first(request: Request) -> Response:
    """Show the page at the printed address: the catalog, or the only dataset or run."""
    targets = site_of(request).targets
    if not targets.is_one():
        return await shelf(request)
    one = next(iter(targets))
    request.path_params["name"] = one.name
    try:
        return await (runs.run if one.kind == "run" else overview)(request)
    except PenstockError:
        if targets.is_one() and next(iter(targets)).name == one.name:
            raise
        return await shelf(request)  # it turned out to be a directory of several datasets meanwhile


async def shelf(request: Request) -> Response:
    """Show all datasets and runs."""
    targets, jobs = site_of(request).targets, site_of(request).jobs
    rows = [(one, targets.described().get(one.name), checked(jobs.progress(("health", one.name)))) for one in targets]
    return answer(request, "shelf.html", rows=list(_folded(rows)), shelves=targets.shelves, tab="shelf")


@dataclass(frozen=True, slots=True)
class Parts:
    """Files of a catalog whose names differ only in their numbers: one row."""

    title: str
    name: str
    parts: list[Target]
    kind: str = "dataset"


_Row: TypeAlias = tuple[Any, OnShelf | None, str | None]


def _folded(rows: Sequence[_Row]) -> Iterator[_Row]:
    """Yield the rows of the catalog; files such as `part-00000.jsonl` of one format are one row."""

    def alike(row: _Row) -> tuple[str, Any]:
        return _PART.sub("*", row[0].title), row[1] and row[1].format

    for (title, format), group in groupby(rows, alike):
        files = list(group)
        known = [told for _, told, _ in files if told is not None]
        if "*" not in title or format is None or len(files) < LEAST_PARTS or len(known) < len(files):
            yield from files
            continue

        def total(name: str, known: list[OnShelf] = known) -> int | None:
            values = [getattr(one, name) for one in known]
            return None if None in values else sum(values)

        warnings = tuple(dict.fromkeys(text for one in known for text in one.warnings))
        whole = OnShelf(title, format, total("samples"), total("tokens"), total("size_bytes"), (), warnings)
        yield Parts(title, files[0][0].name, [one for one, _, _ in files]), whole, None


async def overview(request: Request) -> Response:
    target, split = target_of(request), text_of(request, "split")
    site = site_of(request)

    def ask() -> Any:
        opened = site.targets.dataset(target, split)
        return opened, facts.overview(opened)

    opened, found = await target.patience.within(WAIT_SECONDS, ("overview page", split), ask)
    query = f"?split={quote(split, safe='')}" if split else ""
    verify = f"penstock verify {opened.shell_name}{opened.opening_without('split', 'flavor')} --depth full"
    made = sections.overview(found, f"{root_of(request)}d/{target.name}/", query)
    if text_of(request, "part") == "json":
        return JSONResponse(to_json(made))
    made.append(sections.terminal([f"penstock info {opened.shell_name}{opened.opening_without('flavor')}", verify]))
    return answer(request, "overview.html", target=target, tab="overview", found=found, sections=made, split=split)


async def samples(request: Request) -> Response:
    """Show samples from one on; with `part=rows` only the rows, to extend a list."""
    target, split = target_of(request), text_of(request, "split")
    site, patience = site_of(request), target.patience
    way = chosen_of(request, "as", _WAYS)
    show_all = text_of(request, "all") is not None
    most = min(MOST_ON_PAGE, number_of(request, "n", PAGE, 1) or PAGE)
    asked, byte = text_of(request, "at"), number_of(request, "byte")

    def begin() -> tuple[Any, int | None, int, Fault | str | None]:
        opened = site.targets.dataset(target, split)
        if opened.text_files is None:
            count = numbered(opened)
        else:  # lines are addressed by their share of the bytes
            known = count_of(opened, opened.size_bytes)
            count = known.value
            if count is None:
                return opened, None, 0, None if known.how == NO_INDEX else known.how
        if asked is None:
            return opened, count, 0, None
        try:
            return opened, count, facts.index_of(opened, asked), None
        except (ConfigError, NotFound) as error:  # the list is shown anyway
            what = error.what if asked in error.what else f"{error.what}: {asked}"
            return opened, count, 0, Fault(what, hint=error.hint)

    key = ("begin", split, asked)
    try:
        opened, count, at, fault = await patience.within(WAIT_SECONDS, key, begin)
    except Late:
        return await _meanwhile(request, asked, byte, most)
    if text_of(request, "part") == "far":
        return Response(headers={"HX-Refresh": "true"})
    common: dict[str, Any] = {
        "target": target,
        "tab": "samples",
        "split": split,
        "opened": opened,
        "asked": asked,
        "fault": fault,
    }
    if count is None:
        ask = functools.partial(lines_at, opened, share_of(asked) if byte is None else None, byte or 0, most)
        stretch = await patience.within(WAIT_SECONDS, ("lines", split, asked, byte, most), ask)
        template = "_stretch.html" if text_of(request, "part") == "rows" else "by_share.html"
        return answer(request, template, **common, stretch=stretch, why=fault, meanwhile=None)
    start = number_of(request, "start", at) or 0
    indices = range(start, min(count, start + most))
    works = [
        (("sample", split, i, show_all), functools.partial(facts.sample_at, opened, i, show_all=show_all))
        for i in indices
    ]
    found = await patience.each(WAIT_SECONDS, works)
    shown: list[Panels] = [_late(i) if one is None else one for i, one in zip(indices, found, strict=True)]
    chosen = way_of(shown) if way == "auto" else way
    template = "_rows.html" if text_of(request, "part") == "rows" else "samples.html"
    columns = columns_of(shown) if chosen == "table" else ()
    rows: dict[str, Any] = {"rows": shown, "start": start, "stop": start + len(shown), "count": count, "most": most}
    how: dict[str, Any] = {"way": chosen, "asked_way": way, "columns": columns, "show_all": show_all}
    return answer(request, template, **common, **rows, **how, numeric_columns=numeric_columns)


async def _meanwhile(request: Request, asked: str | None, byte: int | None, most: int) -> Response:
    """Show the first files of a directory that is still being listed; raise `Late` if there are none yet."""
    target, split = target_of(request), text_of(request, "split")
    targets, part = site_of(request).targets, text_of(request, "part")
    told = targets.far(target, split)
    if told is None:
        raise Late
    if part == "far":
        return answer(request, "_far.html", meanwhile=told)

    def ask() -> Any:
        found = targets.beginning(target)
        share = share_of(asked) if byte is None else None
        return None if found is None else (found, lines_at(found, share, byte or 0, most))

    found = await target.aside.within(WAIT_SECONDS, ("beginning", asked, byte, most), ask)
    if found is None:
        raise Late
    opened, stretch = found
    template = "_stretch.html" if part == "rows" else "by_share.html"
    return answer(request, template, target=target, tab="samples", split=split, opened=opened, asked=asked, fault=None,
                  stretch=stretch, why=None, meanwhile=told)  # fmt: skip


async def sample(request: Request) -> Response:
    """Show one sample in full, its location, and the steps that read it."""
    target, split = target_of(request), text_of(request, "split")
    index, site = path_number_of(request, "index"), site_of(request)
    show_all = text_of(request, "all") is not None

    def ask() -> tuple[Any, ...]:
        opened = _numbered(site.targets.dataset(target, split))
        found = facts.sample_at(opened, index, show_all=show_all, bounds=facts.IN_FULL)
        try:
            place = facts.location(opened, index)
        except Exception:  # the error is shown in the sample
            place = None
        return opened, found, place, len(opened)

    opened, found, place, count = await target.patience.within(WAIT_SECONDS, ("full", split, index, show_all), ask)
    known_runs = [one for one in site.targets if one.kind == "run"]
    return answer(request, "sample.html", target=target, tab="samples", split=split, opened=opened, sample=found,
                  place=place, count=count, index=index, show_all=show_all, runs=known_runs)  # fmt: skip


async def tokens(request: Request) -> Response:
    """Show a document, or the tokens of a sample, one by one."""
    target, split = target_of(request), text_of(request, "split")
    index, start = number_of(request, "index", 0) or 0, number_of(request, "start", 0) or 0
    site = site_of(request)

    def ask() -> tuple[Any, ...]:
        opened = site.targets.dataset(target, split)
        if count_of(opened, opened.size_bytes).value == 0:
            raise ConfigError("no tokens: the dataset has no samples")
        if opened.is_tokens:
            return opened, *document_tokens(opened, index, start, _TOKENS)
        _numbered(opened)
        sample = raw_sample(opened, index)
        run = facts.tokens(sample, texts=opened.vocabulary, start=start, most=_TOKENS)
        return opened, run, len(opened)

    try:
        opened, run, count = await target.patience.within(WAIT_SECONDS, ("tokens", split, index, start), ask)
    except ConfigError as error:
        if "no tokens" not in error.what and "no numbers" not in error.what:
            raise
        return answer(request, "tokens.html", target=target, tab="tokens", split=split, run=None, why=error.what)
    return answer(request, "tokens.html", target=target, tab="tokens", split=split, opened=opened, run=run, index=index,
                  count=count, step=_TOKENS, ids=text_of(request, "ids") is not None, position=None)  # fmt: skip


def _numbered(opened: facts.Opened) -> facts.Opened:
    """Return the dataset if its samples have numbers; raise `ConfigError` if that takes a scan."""
    if not opened.is_tokens:
        numbered(opened)
    return opened


def share_of(asked: str | None) -> float:
    """Return the share of the bytes that `73 %` means; raise `ConfigError`."""
    if asked is None:
        return 0.0
    plain = asked.removesuffix("%").strip()
    if not plain.isascii() or not plain.replace(".", "", 1).isdecimal() or float(plain) > 100:
        raise ConfigError(
            "without an index, data can only be browsed by byte position", found=asked[:80], expected="0 to 100 %"
        )
    return float(plain) / 100


def way_of(shown: Sequence[Panels]) -> Way:
    """Choose a display for samples: pictures in a grid, rows of short values in a table, others in a list."""
    whole = [one for one in shown if one.error is None and one.panels]
    if whole and all(any(panel.kind == "image" for panel in one.panels) for one in whole):
        return "grid"
    if whole and all(_is_row(one) for one in whole) and len(columns_of(whole)) <= _MOST_COLUMNS:
        return "table"
    return "list"


def columns_of(shown: Sequence[Panels]) -> tuple[str, ...]:
    """Return the names of the parts of samples, in order of appearance."""
    return tuple(dict.fromkeys(panel.name for one in shown for panel in one.panels))


def numeric_columns(shown: Sequence[Panels]) -> set[str]:
    """Return the names of parts that are always numbers."""
    cells = [
        (panel.name, panel.tree is not None and panel.tree.kind == "number") for one in shown for panel in one.panels
    ]
    return {name for name, _ in cells} - {name for name, is_number in cells if not is_number}


def _is_row(sample: Panels) -> bool:
    """Return whether each part is a short value."""
    return len(sample.panels) > 1 and all(
        panel.kind in ("text", "json") and (panel.tree is None or not panel.tree.children) and len(panel.text) <= 120
        for panel in sample.panels
    )


def checked(progress: Progress | None) -> str | None:
    """Summarize the server's check of a dataset; None if none was started."""
    if progress is None or progress.result is None:
        return None if progress is None else progress.state
    told = [one["severity"] for one in progress.result["findings"]]
    errors = told.count("error")
    return f"{counted(errors, 'error')}, {counted(len(told) - errors, 'warning')}" if told else "clean"


def _late(index: int) -> Panels:
    return Panels(index, None, (), 0, error="loading timed out; reload the page to try again")
