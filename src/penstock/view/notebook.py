"""Notebook display: of sources, streams, loaders, plans and findings; of batches after `%load_ext penstock`.

Reads only indexes, except for batches and findings, which are in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from penstock._kinds import is_lane_stream, is_stream
from penstock.types import Finding
from penstock.view.draw import tables
from penstock.view.draw.markup import Child, Markup, tag
from penstock.view.draw.samples import sample, token_key
from penstock.view.draw.words import count, counted, human_bytes, seconds
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
        return [_title(name), tables.tree(tree(OpenedRun("", value, None, None)))]
    return _dataset(value)


def _dataset(value: Any) -> Sequence[Child]:
    opened = open_target(value)
    facts = overview(opened, fingerprint=False)
    name = opened.name.rstrip("/").rpartition("/")[2] or opened.name
    return [
        _title(name),
        tag("div", opened.name, class_="path"),
        tables.overview_cards(facts),
        tables.folded("schema", tables.schema(facts)),
        None if facts.lengths is None else tables.folded("lengths", tables.lengths(facts.lengths)),
    ]


def _loader(value: Any) -> Sequence[Child]:
    found = value.metrics()
    rows = [
        (count(value.step), "next step (from 0)", f"{count(value.consumed)} samples consumed"),
        (count(value.global_batch), "global batch", f"rank {value.rank} of {value.world}, {value.micro_batch} at once"),
        (seconds(found.waiting_seconds), "waited", f"{seconds(found.training_seconds)} between batches"),
        (count(found.substituted), "substituted", f"of {counted(found.samples, 'sample')} of this rank"),
    ]
    sources = [
        (name, count(one.samples), f"{one.epochs:,.4f}", count(one.tokens)) for name, one in found.sources.items()
    ]
    return [
        _title("Loader"),
        tables.cards(rows),
        tables.table(("source", "samples", "epochs", "tokens"), sources, (1, 2, 3), names=(0,)) if sources else None,
        tables.folded("sources", tables.tree(tree(OpenedRun("", value.data, None, None)))),
    ]


def _plan(value: Mapping[str, Any]) -> Sequence[Child]:
    plan = as_plan(value)
    return [_title("Plan"), tables.plan_cards(plan), tables.warnings(plan.warnings), tables.plan_table(plan)]


def _findings(value: Sequence[Finding]) -> Sequence[Child]:
    found = health(value)
    words = f"{counted(found.errors, 'error')}, {counted(found.warnings, 'warning')}"
    return [_title("No findings" if found.is_sound else words), None if found.is_sound else tables.health(found)]


def _batch(batch: Mapping[str, Any]) -> Sequence[Child]:
    length = _num_rows(batch) or 0
    columns = {name: one for name, one in batch.items() if _size(one) == length and name not in _OF_ALL}
    fields = [(tag("code", name), *_column(one)) for name, one in batch.items()]
    cards: list[Child] = []
    runs: list[TokenRun] = []
    for row in range(min(length, MOST_ROWS)):
        values = {name: one[row] for name, one in columns.items()}
        run = _tokens(values)
        runs += [] if run is None else [run]
        shown = panels({name: _as_array(one) for name, one in values.items()}, bounds=_BOUNDS)
        cards.append(sample(shown, title=f"row {row}", tokens=run, width=1 if run is None else 2))
    more = tag("p", f"and {counted(length - MOST_ROWS, 'more row')}", class_="muted") if length > MOST_ROWS else None
    table = tables.table(("field", "dtype", "shape", "size"), fields, (3,), names=(0,))
    return [
        _title(f"Batch of {counted(length, 'sample')}"),
        table,
        token_key(runs),
        tag("div", cards, class_="samples"),
        more,
    ]


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


def _column(column: Any) -> tuple[str, str, str]:
    if hasattr(column, "dtype") and hasattr(column, "shape"):
        nbytes = getattr(column, "nbytes", None)
        return (
            str(column.dtype),
            " × ".join(map(str, column.shape)),
            human_bytes(nbytes if isinstance(nbytes, int) else None),
        )
    if not isinstance(column, list):
        return type(column).__name__, "one", "–"
    kind = type(column[0]).__name__ if column else "nothing"
    return f"list of {kind}", count(len(column)), "–"


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
    """Return the report's style rules, nested; colours follow the notebook's theme if known, else the system's."""
    variables = style_file("colours.css").replace(":root", ".penstock")
    rules = style_file("report.css").partition("@media print")[0]
    kept = "\n".join(
        line for line in rules.splitlines() if not line.startswith(("html ", "body ", "main,", "header.top", "footer"))
    )
    own = (
        '[data-jp-theme-light="true"] .penstock, .vscode-light .penstock { color-scheme: light; }\n'
        '[data-jp-theme-light="false"] .penstock, .vscode-dark .penstock { color-scheme: dark; }\n'
        ".penstock { background: var(--bg); color: var(--text); font: 14px/1.5 var(--sans); padding: 12px 14px; "
        "border: 1px solid var(--line); border-radius: 8px; max-width: 1000px; }\n"
        ".penstock .title { font-size: 16px; font-weight: 600; }\n"
        ".penstock .cards { margin-top: 12px; } .penstock > .scroll { margin-top: 10px; }\n"
    )
    return Markup(f"{variables}\n.penstock {{{kept}\n}}\n{own}")
