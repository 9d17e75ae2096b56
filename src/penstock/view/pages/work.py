"""Pages for work on a whole dataset: find, health, compare."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import ConfigError, PenstockError
from penstock.look.diff import DiffReport
from penstock.types import Finding
from penstock.view import facts
from penstock.view.facts.scan import By, Scan, Wish, scan
from penstock.view.pages.patience import WAIT_SECONDS
from penstock.view.pages.site import (
    answer,
    chosen_of,
    fault_of,
    form_of,
    number_of,
    seen_other,
    site_of,
    target_of,
    text_of,
)

DEPTHS = ("quick", "sample", "full")
_SCAN_SECONDS = 1.5
_WAYS: tuple[By, ...] = ("key", "index", "text", "where")


async def find(request: Request) -> Response:
    """Show samples by key, index, text or field; a scan continues from the end of the last one."""
    target, split = target_of(request), text_of(request, "split")
    site = site_of(request)
    by: By | None = next((way for way in _WAYS if text_of(request, way) is not None), None)
    wish = None if by is None else Wish(by, text_of(request, by) or "")
    start, found, fault = number_of(request, "from", 0) or 0, None, None

    def ask() -> Scan:
        opened = site.targets.dataset(target, split)
        return scan(
            opened, wish or Wish("key", ""), start, _SCAN_SECONDS, follow_links=site.targets.settings.follow_links
        )

    if wish is not None:
        try:
            found = await target.patience.within(WAIT_SECONDS, ("find", split, wish, start), ask)
        except (PenstockError, OSError) as error:
            fault = fault_of(error)
    template = "_hits.html" if text_of(request, "part") else "find.html"
    return answer(request, template, target=target, tab="find", split=split, wish=wish, found=found, scan_fault=fault,
                  start=start)  # fmt: skip


async def health(request: Request) -> Response:
    """Show the results of a check, and start it."""
    target = target_of(request)
    progress = site_of(request).jobs.progress(("health", target.name))
    result = None if progress is None else progress.result
    found = None if result is None else facts.health(msgspec.convert(result["findings"], list[Finding]))
    template = "_health.html" if text_of(request, "part") else "health.html"
    running = progress is not None and progress.state in ("running", "stopping")
    return answer(request, template, target=target, tab="health", progress=progress, found=found, depths=DEPTHS,
                  refresh=running and template == "health.html")  # fmt: skip


async def start_health(request: Request) -> Response:
    """Start a check, which only reads."""
    form, target = await form_of(request), target_of(request)
    depth = form.get("depth", "sample")
    if depth not in DEPTHS:
        raise ConfigError("unknown depth", found=depth[:40], expected=" | ".join(DEPTHS))
    arguments = ["verify", "--json", "--progress", "json", "--depth", depth, *_opening(request)]
    arguments += ["--", target.place.path]
    site_of(request).jobs.start(("health", target.name), arguments)
    return seen_other("../health")


async def stop_health(request: Request) -> Response:
    await form_of(request)
    site_of(request).jobs.stop(("health", target_of(request).name))
    return seen_other("../health")


async def compare(request: Request) -> Response:
    """Show a comparison with another dataset: facts immediately, samples on request."""
    target, site = target_of(request), site_of(request)
    others = [one for one in site.targets if one.kind == "dataset" and one.name != target.name]
    name = text_of(request, "with")
    other = None if name is None else site.targets.named(name)
    if other is None and len(others) == 1:
        other = others[0]
    way = chosen_of(request, "as", ("sequence", "set"))
    sides: list[Any] = []
    for one in (target, *([] if other is None else [other])):
        ask = functools.partial(_overview, site, one)
        try:
            sides.append((await one.patience.within(WAIT_SECONDS, ("overview", None), ask), None))
        except (PenstockError, OSError) as error:
            sides.append((None, fault_of(error)))
    progress = None if other is None else site.jobs.progress(("compare", target.name, other.name, way))
    result = None if progress is None else progress.result
    found = None if result is None else facts.compared(msgspec.convert(result, DiffReport))
    template = "_compare.html" if text_of(request, "part") else "compare.html"
    running = progress is not None and progress.state in ("running", "stopping")
    return answer(request, template, target=target, tab="compare", other=other, others=others, sides=sides, way=way,
                  progress=progress, found=found, refresh=running and template == "compare.html")  # fmt: skip


async def start_compare(request: Request) -> Response:
    """Start to compare two datasets of this server, which only reads."""
    form, target, site = await form_of(request), target_of(request), site_of(request)
    other, way = site.targets.named(form.get("with", "")), form.get("as", "sequence")
    if way not in ("sequence", "set"):
        raise ConfigError("unknown way to compare", found=way[:40], expected="sequence | set")
    arguments = [
        "diff",
        "--json",
        "--progress",
        "json",
        "--as",
        way,
        *_split(request),
        *_links(request),
        "--",
        target.place.path,
        other.place.path,
    ]
    site.jobs.start(("compare", target.name, other.name, way), arguments)
    return seen_other(f"../compare?with={other.name}&as={way}")


async def stop_compare(request: Request) -> Response:
    form, target, site = await form_of(request), target_of(request), site_of(request)
    other, way = site.targets.named(form.get("with", "")), form.get("as", "sequence")
    site.jobs.stop(("compare", target.name, other.name, way))
    return seen_other(f"../compare?with={other.name}&as={'set' if way == 'set' else 'sequence'}")


def _overview(site: Any, target: Any) -> Any:
    return facts.overview(site.targets.dataset(target))


def _split(request: Request) -> list[str]:
    split = site_of(request).targets.settings.split
    return [] if split is None else ["--split", split]


def _links(request: Request) -> list[str]:
    return ["--follow-links"] if site_of(request).targets.settings.follow_links else []


def _opening(request: Request) -> list[str]:
    """Return the options of the opened dataset that a check supports."""
    given = site_of(request).targets.settings.of_one()
    told = [(f"--{name.replace('_', '-')}", str(value)) for name, value in given.items() if name != "flavor"]
    return [*(one for pair in told for one in pair), *_links(request)]
