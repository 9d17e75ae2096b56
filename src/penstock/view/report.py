"""`report`: an overview of a dataset or a run as a single file for a mail or a wiki.

The file opens from a disk: its pictures are SVG and small JPEGs, it has no script, and its content security policy
allows none. The same data and options give the same bytes, for any file name. At most about 1.5 MB.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal, TypeAlias, Unpack

import xxhash

from penstock import __version__
from penstock._keywords import Opening, were_given, with_options
from penstock._secrets import redacted_repr
from penstock.check import verify
from penstock.errors import ConfigError, PenstockError
from penstock.formats import files_at
from penstock.store.derived import keeping_nothing
from penstock.store.dry import dry_place
from penstock.store.outputs import claimed, output_path, require_file_or_none, require_other
from penstock.store.place import Data, Given, Place, place_of
from penstock.store.put import put
from penstock.types import Depth
from penstock.view.draw import sections
from penstock.view.draw.blocks import Notes, Ready, Section, Text
from penstock.view.draw.html import to_html
from penstock.view.draw.markup import Child, Markup, several, tag
from penstock.view.draw.samples import card, token_key
from penstock.view.draw.words import count, counted
from penstock.view.facts.batches import BatchFacts, batch, sample_of, window_tokens
from penstock.view.facts.bounds import Bounds, is_of_the_disk
from penstock.view.facts.dataset import Overview, overview
from penstock.view.facts.findings import health
from penstock.view.facts.media import drawn
from penstock.view.facts.opening import Opened, OpenedRun, is_recipe, open_run, open_target
from penstock.view.facts.panel import Panels, describe_error
from penstock.view.facts.run import curves, plan_of, tree
from penstock.view.facts.samples import document_tokens, media_of, sample_at
from penstock.view.facts.token_run import TokenRun

MOST_EXAMPLES = 48
"""Limit on the samples of a report."""

THUMBNAIL_SIDE, THUMBNAIL_BYTES, MOST_THUMBNAILS = 320, 16_384, 48
"""The longer side of a picture in pixels, bytes of its JPEG, and pictures of a report."""

CheckDepth: TypeAlias = Depth | Literal["none"]
_Example: TypeAlias = tuple[Panels, dict[str, bytes | str], TokenRun | None]

_BOUNDS = Bounds(panels=12, characters=800, nodes=40, deep=6, items=64, shown_bytes=64)
_FIRST_TOKENS = 192
_NAMES = (".html", ".htm")
_MARK = b"<!doctype html>\n<!-- penstock report -->"
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@redacted_repr
@dataclass(frozen=True, slots=True)
class Report:
    """Report page that was written: path, kind (`"dataset"` or `"run"`), size in bytes, and examples."""

    path: str
    kind: str
    size_bytes: int
    examples: int


@with_options(Opening, omit=("read",), strict=True)
def report(
    target: Data, output: Given, *,
    examples: int = 12, depth: CheckDepth = "quick", step: int = 0, steps: int | None = None,
    global_batch: int | None = None, world: int | None = None, state: str | os.PathLike[str] | None = None,
    seed: int | None = None, mode: str | None = None,
    format: str | None = None, tokenizer: str | None = None, overwrite: bool = False, dry_run: bool = False,
    **opening: Unpack[Opening],
) -> Report:  # fmt: skip
    """Write a self-contained HTML report on a dataset, or on a training run described by a recipe.

    For a dataset: counts, lengths, shards, splits, schema, files, examples chosen by hash, and the findings of a check.
    For a run: the reads from each source, the tree of its mix, the proportions over its steps, and the batch of one
    step.

    Args:
        target: path or URL of a dataset, recipe or metadataset.
        output: path or URL of the page.
        examples: number of samples to show, at most 48.
        depth: depth of the check of a dataset, as in `penstock.verify`; `"none"` skips it.
        step: step of a run whose batch is shown, from 0.
        state: saved state of a run, a JSON file, which records the batch size of each step.
        steps: number of steps of a run; by default until every source was read once.
        global_batch: samples per step of a run.
        world: number of data-parallel ranks of a run.
        seed: seed of a run's order, if its recipe has none.
        mode: mode of a metadataset: `"train"` or `"val"`.
        format: format of the dataset; detected by default.
        tokenizer: file or directory of the tokenizer, to show token ids as text.
        overwrite: replace an existing report.
        dry_run: check everything and report the size of the page, without writing.
        opening: options of `penstock.open`.

    Returns:
        A summary of the page written.

    Raises:
        ConfigError: the batch size of a run is unknown; the output exists, isn't a report, or doesn't end with `.html`
            or `.htm`; or the target doesn't support an option.
        NotFound, FormatError: there is nothing at `target`, or it can't be opened.

    Examples:
        >>> import penstock as ps
        >>> page = ps.report("docs.jsonl", "docs.html", examples=3)
    """
    if not 0 <= examples <= MOST_EXAMPLES:
        raise ConfigError("too many examples for a page", found=examples, expected=f"0 to {MOST_EXAMPLES}")
    place = _place_of_page(place_of(output).bare())
    of_run = is_recipe(target)
    taken: dict[str, Any] = {name: opening.get(name) for name in ("trust", "follow_links", "split")}
    taken |= {"trust": bool(taken["trust"]), "follow_links": bool(taken["follow_links"]), "tokenizer": tokenizer}
    for_runs: dict[str, Any] = {"steps": steps, "global_batch": global_batch, "world": world, "state": state}
    for_runs |= {"seed": seed, "mode": mode}
    for_data: dict[str, Any] = {"format": format, **opening}
    for_data = {name: value for name, value in for_data.items() if name not in taken}
    _refuse_others(were_given(for_data) if of_run else for_runs | {"step": step or None}, of_run=of_run)
    with keeping_nothing(dry_run):
        if of_run:
            named: Any = {name: value for name, value in for_runs.items() if name != "steps"}
            run = open_run(_as_path(target), **taken, **named)
            _require_report_or_none(place, [_as_path(target), *_paths_of(run.data.recipe())], overwrite=overwrite)
            _ = run.shape()  # raise an error for an unknown batch size before anything is read
            _ = run.vocabulary  # raise an error for a missing tokenizer before anything is read
            title, body, shown = run.name, _of_run(run, step, steps, examples), examples
        else:
            how: dict[str, Any] = {} if isinstance(target, Place) else {"read": "pread"}  # as in the viewer
            opened = open_target(_as_path(target), **taken, **for_data, **how)
            _require_report_or_none(place, _files(opened), overwrite=overwrite)
            _ = opened.vocabulary
            checked = {"format": opened.format} | were_given({**taken, **for_data})
            checked.pop("tokenizer", None)
            title, body, shown = _of_dataset(opened, examples, depth, checked)
        data = page(title, "run" if of_run else "dataset", body)
    place = dry_place(place) if dry_run else place
    with claimed(place.store, place.path) as held:
        put(held, place.path, data, overwrite=overwrite)
    return Report(place.path, "run" if of_run else "dataset", len(data), shown)


def page(title: str, kind: str, body: Iterable[Child]) -> bytes:
    name = title.rstrip("/").rpartition("/")[2] or title
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{name} – Penstock report"),
        tag("style", style()),
    )
    top = tag("header", tag("div", f"Penstock report of a {kind}", class_="eyebrow"), tag("h1", name),
              tag("div", title, class_="path"), class_="top")  # fmt: skip
    end = tag("footer", f"Created by Penstock {__version__}. All figures are from that time.")
    html = tag("html", head, tag("body", top, tag("main", body), end), lang="en")
    return _MARK + b"\n" + html.encode("utf-8") + b"\n"


def style() -> Markup:
    """Return the style sheet: colours and blocks shared with the pages, then the page of a report."""
    return Markup("".join(map(style_file, ("colours.css", "blocks.css", "report.css"))))


def style_file(name: str) -> str:
    return (resources.files("penstock.view") / "static" / name).read_text("utf-8")


def _of_dataset(
    opened: Opened, examples: int, depth: CheckDepth, options: Mapping[str, Any]
) -> tuple[str, list[Child], int]:
    facts = overview(opened)
    shown = _examples(opened, facts, examples) if facts.samples.value else []
    found = (
        None if depth == "none" else health(verify(opened.place.path, depth=depth, **options)) if opened.place else None
    )
    top, made = sections.overview(facts), list[Section]()
    if facts.samples.value is None and not facts.unknown:
        top.insert(1, Section(None, [Notes([facts.samples.how])]))
    chosen_by = f"{counted(len(shown), 'sample')}, chosen by a hash of their index"
    if shown:
        made.append(Section("Examples", [Ready(_cards_of(shown))], chosen_by))
    elif facts.samples.value == 0:
        made.append(Section("Examples", [Text("no samples to show")]))
    if found is not None:
        made.append(Section("Health", sections.health(found), f"penstock verify --depth {depth}"))
    return opened.name, [to_html(top), to_html(made)], len(shown)


def chosen(seed: str, size: int, count: int) -> list[int]:
    """Return indices of examples, ascending: determined only by the data."""
    if size <= count:
        return list(range(size))
    found: set[int] = set()
    number = 0
    while len(found) < count:
        found.add(xxhash.xxh3_64_intdigest(f"{seed} {number}".encode()) % size)
        number += 1
    return sorted(found)


def _examples(
    opened: Opened, facts: Overview, count: int
) -> list[tuple[Panels, dict[str, bytes | str], TokenRun | None]]:
    left, made = MOST_THUMBNAILS, list[tuple[Panels, dict[str, bytes | str], TokenRun | None]]()
    for index in chosen(str(facts.fingerprint.value), int(facts.samples.value), count):
        shown = sample_at(opened, index, bounds=_BOUNDS, strict=True)
        small: dict[str, bytes | str] = {}
        for one in shown.panels:
            if one.kind == "image" and one.media_type and len(small) < left:
                small[one.name] = _thumbnail(opened, index, one.name)
        left -= len(small)
        made.append((shown, small, _document(opened, index) if opened.is_tokens and shown.error is None else None))
    return made


def _thumbnail(opened: Opened, index: int, part: str) -> bytes | str:
    """Return a small picture, or the reason why there isn't one."""
    try:
        data = media_of(opened, index, part).data
        if data.size_bytes > 1 << 26:
            return "a file too large to show"
        return drawn(data.read(0, data.size_bytes), THUMBNAIL_SIDE, THUMBNAIL_BYTES)
    except (PenstockError, ImportError) as error:
        return describe_error(error)


def _document(opened: Opened, index: int) -> TokenRun | None:
    try:
        return document_tokens(opened, index, 0, _FIRST_TOKENS)[0]
    except PenstockError:
        return None


def _cards_of(shown: list[_Example]) -> Markup:
    runs = [run or one.tokens for one, _, run in shown]
    cards = [card(one, _name_of(one), tokens=run, thumbnails=small) for one, small, run in shown]
    return several(token_key(run for run in runs if run is not None), tag("div", cards, class_="samples"))


def _name_of(one: Panels) -> str:
    return "sample" if one.index is None else f"#{count(one.index)}"


def _of_run(run: OpenedRun, step: int, steps: int | None, examples: int) -> Iterator[Child]:
    plan = plan_of(run, steps)
    made = [sections.plan(plan, requested=steps is not None), sections.mix(tree(run)), sections.plan_sources(plan)]
    try:
        made += sections.over_steps(curves(run, steps))
    except ConfigError as error:
        made.append(Section("Over the steps", [Text(describe_error(error))]))
    shown = batch(run, step, most=max(1, min(examples, 12)), bounds=_BOUNDS, strict=True)
    yield to_html([one for one in made if one is not None])
    whose = "all ranks" if shown.rank is None else f"rank {shown.rank}"
    about = f"{counted(shown.of, 'sample')} of {whose}, world size {count(shown.world)}"
    title = f"The batch of step {count(step)}"
    first = f"The first {counted(len(shown.samples), 'sample')}" if len(shown.samples) < shown.of else "Samples"
    yield tag("h2", f"{title} (counted from 0) ", tag("small", about), class_="part")
    error = Section(None, [Notes([shown.error])]) if shown.error else None
    cards = Section(first, [Ready(_batch(run, shown))])
    yield to_html([one for one in (error, *sections.batch(shown)) if one is not None])
    yield to_html([cards])


def _batch(run: OpenedRun, shown: BatchFacts) -> Markup:
    windows = [_window(run, one.origin.position) for one in shown.samples]
    cards = [
        card(one.sample, f"position {count(one.origin.position)}", one.origin, tokens=window)
        for one, window in zip(shown.samples, windows, strict=True)
    ]
    return several(token_key(one for one in windows if one is not None), tag("div", cards, class_="samples"))


def _window(run: OpenedRun, position: int) -> TokenRun | None:
    try:
        return window_tokens(run, position, sample_of(run, position), most=_FIRST_TOKENS)
    except Exception as error:  # samples without tokens and unreadable ones show their panels
        if is_of_the_disk(error):
            raise
        return None


def _refuse_others(given: Mapping[str, Any], *, of_run: bool) -> None:
    said = [f"{name}=" for name, value in given.items() if value is not None]
    if said:
        what = (
            "this option is for datasets, but the target is a recipe"
            if of_run
            else "this option is for runs, but the target is a dataset"
        )
        raise ConfigError(what, found=", ".join(said), hint="Omit it")


def _place_of_page(output: Place) -> Place:
    """Return the location of the output; raise `ConfigError` if its name has the wrong extension."""
    place = Place(output.store, output_path(output.store, output.path))
    if not place.path.lower().endswith(_NAMES):
        hint = "Use such a name. For a PDF, open the page in a browser and print it to a file"
        raise ConfigError(
            "a report is an HTML page", path=place.path, expected=f"a name with {' or '.join(_NAMES)}", hint=hint
        )
    return place


def _require_report_or_none(place: Place, inputs: Iterable[str], *, overwrite: bool) -> None:
    """Check that the page replaces nothing but a report, and no input.

    Raises:
        ConfigError: the output is an input, or exists and isn't a report.
    """
    require_other(inputs, place.path)
    require_file_or_none(place.store, place.path)
    if overwrite and place.exists() and place.store.get(place.path, 0, len(_MARK)) != _MARK:
        hint = "Choose another output. A report can only replace a report"
        raise ConfigError("the existing file is not a report", path=place.path, hint=hint)


def _files(opened: Opened) -> list[str]:
    place = opened.place
    return [] if place is None else [place.path, *files_at(opened.format, place.path)]


def _paths_of(recipe: Any) -> Iterator[str]:
    if isinstance(recipe, Mapping):
        path = recipe.get("path")
        yield from [path] if isinstance(path, str) and recipe.get("kind") == "open" else []
        for value in recipe.values():
            yield from _paths_of(value)
    elif isinstance(recipe, list):
        for value in recipe:
            yield from _paths_of(value)


def _as_path(target: Data) -> str:
    return target if isinstance(target, str) else place_of(target).path


__all__ = ["Report", "chosen", "page", "report", "style"]
