"""Notebook display: of sources, streams, loaders, plans and findings; of batches after `%load_ext penstock`.

Reads only indexes, except for batches and findings, which are in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from penstock._kinds import is_lane_stream, is_stream
from penstock.types import Finding
from penstock.view.draw import sections
from penstock.view.draw.blocks import Amount, Block, Column, Figures, Ready, Section, Table
from penstock.view.draw.html import block_html, to_html
from penstock.view.draw.markup import Child, Markup, several, tag
from penstock.view.draw.samples import card, token_key
from penstock.view.draw.words import count, counted, seconds
from penstock.view.facts.bounds import Bounds
from penstock.view.facts.dataset import overview
from penstock.view.facts.findings import health
from penstock.view.facts.opening import OpenedRun, open_target
from penstock.view.facts.panel import panels
from penstock.view.facts.run import as_plan, tree
from penstock.view.facts.token_run import TokenRun, tokens
from penstock.view.report import style_file

MOST_ROWS = 8
"""Limit on the samples of a batch that are shown."""

_BOUNDS = Bounds(panels=12, characters=400, nodes=40, deep=5, items=64, shown_bytes=64)
_TOKENS = 96
_OF_ALL = ("cu_seqlens", "max_seqlen")
"""Columns of a batch as a whole."""

_KNOWN = ("tokens", "inputs", "input_ids", "__key__")


def html_of(value: Any) -> str:
    """Return the notebook display of a source, stream, loader, plan or findings."""
    return str(_wrapped(_drawn(value)))


def batch_html(batch: Any) -> str | None:
    """Return the notebook display of a dict that is a batch of columns; None for any other dict."""
    return str(_wrapped(_batch(batch))) if _is_batch(batch) else None


def load(shell: Any) -> None:
    """Show batches in a notebook; called by `%load_ext penstock`."""
    shell.display_formatter.formatters["text/html"].for_type(dict, batch_html)


def unload(shell: Any) -> None:
    """Undo `load`; called by `%unload_ext penstock`."""
    shell.display_formatter.formatters["text/html"].pop(dict, None)


def _drawn(value: Any) -> Sequence[Child]:
    if isinstance(value, list):
        return _findings(value)
    if isinstance(value, dict):
        return _plan(value)
    if hasattr(type(value), "state_dict") and hasattr(type(value), "metrics"):
        return _loader(value)
    if is_stream(value) or is_lane_stream(value) or value.children():
        num_samples: int | None = None if is_stream(value) or is_lane_stream(value) else len(cast("Any", value))
        name = type(value).__name__ + ("" if num_samples is None else f", {counted(num_samples, 'sample')}")
        return [_title(name), _mix(value)]
    return _dataset(value)


def _dataset(value: Any) -> Sequence[Child]:
    opened = open_target(value)
    facts = overview(opened, fingerprint=False)
    name = opened.name.rstrip("/").rpartition("/")[2] or opened.name
    return [
        _title(name),
        tag("div", opened.name, class_="path"),
        block_html(sections.figures(facts)),
        _folded("schema", sections.schema(facts)),
        None if facts.lengths is None else _folded("lengths", sections.lengths(facts, facts.lengths)),
    ]


def _folded(name: str, one: Section) -> Markup:
    """Return a section that opens on a click."""
    return tag("details", tag("summary", name), to_html([Section(None, one.blocks)]))


def _mix(value: Any) -> Markup:
    return to_html([Section(None, sections.mix(tree(OpenedRun("", value, None, None))).blocks)])


def _loader(value: Any) -> Sequence[Child]:
    found = value.metrics()
    amounts = [
        Amount("next step (from 0)", value.step, how=f"{count(value.consumed)} samples consumed"),
        Amount("global batch", value.global_batch,
               how=f"rank {value.rank} of {value.world}, {value.micro_batch} at once"),
        Amount("waited", seconds(found.waiting_seconds), how=f"{seconds(found.training_seconds)} between batches"),
        Amount("substituted", found.substituted, how=f"of {counted(found.samples, 'sample')} of this rank"),
    ]  # fmt: skip
    kinds = [Column("samples", "count"), Column("epochs", "factor"), Column("tokens", "count")]
    rows = [(name, one.samples, one.epochs, one.tokens) for name, one in found.sources.items()]
    return [
        _title("Loader"),
        block_html(Figures(amounts)),
        block_html(Table([Column("source", "name"), *kinds], rows)) if rows else None,
        tag("details", tag("summary", "sources"), _mix(value.data)),
    ]


def _plan(value: Mapping[str, Any]) -> Sequence[Child]:
    plan = as_plan(value)
    made = (sections.plan(plan, requested=True), sections.plan_sources(plan))
    return [_title("Plan"), to_html(Section(None, one.blocks) for one in made if one is not None)]


def _findings(value: Sequence[Finding]) -> Sequence[Child]:
    found = health(value)
    words = f"{counted(found.errors, 'error')}, {counted(found.warnings, 'warning')}"
    blocks: list[Block] = [] if found.is_sound else sections.health(found)
    return [_title("No findings" if found.is_sound else words), *map(block_html, blocks)]


def _batch(batch: Mapping[str, Any]) -> Sequence[Child]:
    length = _num_rows(batch) or 0
    columns = {name: one for name, one in batch.items() if _size(one) == length and name not in _OF_ALL}
    fields = [(name, *_column(one)) for name, one in batch.items()]
    cards: list[Child] = []
    runs: list[TokenRun] = []
    for row in range(min(length, MOST_ROWS)):
        values = {name: one[row] for name, one in columns.items()}
        run = _tokens(values)
        runs += [] if run is None else [run]
        shown = panels({name: _as_array(one) for name, one in values.items()}, bounds=_BOUNDS)
        cards.append(card(shown, f"row {row}", tokens=run))
    more = tag("p", f"and {counted(length - MOST_ROWS, 'more row')}", class_="cut") if length > MOST_ROWS else None
    table = Table([Column("field", "name"), Column("dtype"), Column("shape"), Column("size", "bytes")], fields)
    samples = Ready(several(token_key(runs), tag("div", cards, class_="samples"), more))
    return [_title(f"Batch of {counted(length, 'sample')}"), block_html(table), block_html(samples)]


def _tokens(values: Mapping[str, Any]) -> TokenRun | None:
    arrays = {name: _as_array(one) for name, one in values.items()}
    known = [arrays[name] for name in _KNOWN[:3] if arrays.get(name) is not None]
    if not any(np.ndim(one) == 1 for one in known):
        return None
    return tokens(arrays, most=_TOKENS)


def _as_array(value: Any) -> Any:
    """Return a tensor as an array, if it is in host memory."""
    is_tensor = not isinstance(value, np.ndarray | np.generic) and hasattr(value, "numpy") and hasattr(value, "dtype")
    try:
        return cast("Any", value).numpy() if is_tensor else value
    except Exception:  # a tensor on a device, or one that requires gradients
        return value


def _column(column: Any) -> tuple[str, str, int | None]:
    if hasattr(column, "dtype") and hasattr(column, "shape"):
        nbytes = getattr(column, "nbytes", None)
        return str(column.dtype), " × ".join(map(str, column.shape)), nbytes if isinstance(nbytes, int) else None
    if not isinstance(column, list):
        return type(column).__name__, "one", None
    kind = type(column[0]).__name__ if column else "nothing"
    return f"list of {kind}", count(len(column)), None


def _is_batch(value: Any) -> bool:
    """Return whether a dict is a batch: it has column names, and one of ours is a column."""
    return bool(value) and all(isinstance(name, str) for name in value) and _num_rows(value) is not None


def _num_rows(batch: Mapping[str, Any]) -> int | None:
    """Return the number of samples of a batch, from its known columns; None without one."""
    return next((found for name in _KNOWN if name in batch and (found := _size(batch[name])) is not None), None)


def _size(column: Any) -> int | None:
    if isinstance(column, list):
        return len(column)
    shape = getattr(column, "shape", None)
    return int(shape[0]) if shape else None


def _title(name: str) -> Markup:
    return tag("div", name, class_="title")


def _wrapped(content: Sequence[Child]) -> Markup:
    """Return part of a foreign page: the style sheet only applies inside it."""
    return tag("div", tag("style", _scoped()), content, class_="penstock")


def _scoped() -> Markup:
    """Return the rules of blocks, nested; colours follow the notebook's theme if known, else the system's."""
    variables = style_file("colours.css").replace(":root", ".penstock")
    rules = style_file("blocks.css").partition("@media print")[0].replace(":root", "&")
    own = (
        '[data-jp-theme-light="true"] .penstock, .vscode-light .penstock { color-scheme: light; }\n'
        '[data-jp-theme-light="false"] .penstock, .vscode-dark .penstock { color-scheme: dark; }\n'
        ".penstock { background: var(--bg); color: var(--text); font: 14px/1.5 var(--sans); padding: 12px 14px; "
        "border: 1px solid var(--line); border-radius: 8px; max-width: 1000px; }\n"
        ".penstock .title { font-size: 16px; font-weight: 600; }\n"
        ".penstock > * + * { margin-top: 12px; }\n"
    )
    return Markup(f"{variables}\n.penstock {{{rules}\n}}\n{own}")
