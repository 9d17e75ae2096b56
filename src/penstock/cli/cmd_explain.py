"""`penstock explain RECIPE`."""

from __future__ import annotations

import sys
from typing import Any

import click

from penstock.cli._common import has_color
from penstock.cli._energon import refuse_given
from penstock.cli._output import counted, emit, json_option, say, table
from penstock.cli._pictures import decoded_pictures, pictures_option, way_of
from penstock.cli._recipes import open_run, recipe_options
from penstock.cli._samples import require_one, sample_options, warn_of

_DOCUMENT = (
    "List the steps that read a document instead: the key of a sample, the number of a document, or FILE[INDEX] of "
    "data made with --keep-map."
)


@click.command()
@recipe_options
@click.option("--step", type=click.IntRange(0), help="Step to explain, from 0. With --document: last step to search.")
@click.option("--rank", type=click.IntRange(0), help="Only list the samples of this rank, from 0.")
@click.option(
    "--state", metavar="FILE", help="Saved state (JSON) of the run, which records the batch size of each step."
)
@click.option("--document", metavar="KEY", help=_DOCUMENT)
@click.option(
    "--excluded", is_flag=True, help="List the steps before --state that read samples which are excluded now."
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    show_default="all samples of a step, else 1000",
    help="Maximum number of rows to list.",
)
@click.option(
    "--show", is_flag=True, help="Show the samples too: all, or those that --start, --index or --key selects."
)
@sample_options
@pictures_option
@json_option
def command(
    recipe: str, step: int | None, rank: int | None, state: str | None, document: str | None, excluded: bool,
    limit: int | None, show: bool, start: int | None, index: int | None, key: str | None, tokenizer: str | None,
    show_all: bool, pictures: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Show which samples a step read, or which steps read a document.

    The answer is computed from the recipe, the seed and the state, so it is exact and needs no logs. Steps count
    from 0.
    """
    from penstock.load.excluded import explain_excluded
    from penstock.load.explain import explain_document, explain_step, run_of, steps_to_search
    from penstock.view.facts.opening import OpenedRun, read_state

    require_one()
    if not show:
        why = "These options need --show"
        refuse_given(click.get_current_context(), ("start", "index", "key", "tokenizer", "show_all", "pictures"), why)
    if excluded and (step is not None or document is not None or rank is not None or show or state is None):
        raise click.UsageError(
            "--excluded needs --state FILE and can't be combined with --step, --rank, --document or --show."
        )
    if step is None and document is None and not excluded:
        raise click.UsageError("Give --step K, --document KEY or --excluded.")
    most = 1000 if limit is None else limit
    data, batch = open_run(recipe, options)
    saved = None if state is None else read_state(state)
    run = run_of(data, batch.get("global_batch"), batch.get("world"), saved)
    if excluded:
        told = explain_excluded(run, most)
        emit(told, as_json=as_json, text=lambda: _of_excluded(told))
        return
    if document is None:
        found = explain_step(run, step or 0, rank, batch.get("world"))
        if limit is not None:
            found |= {"of": len(found["samples"]), "samples": found["samples"][:limit]}
    else:
        found = explain_document(run, document, steps_to_search(run, step), most, batch.get("world"))
        if rank is not None:
            found["samples"] = [one for one in found["samples"] if one["rank"] == rank]
    if not show:
        emit(found, as_json=as_json, text=lambda: _text(found))
        return
    chosen = _chosen(found["samples"], {"start": start, "index": index, "key": key})
    opened, way = OpenedRun(recipe, run.data, None, None, tokenizer), way_of(pictures, as_json=as_json)
    vocabulary = opened.vocabulary
    warn_of(opened.other_tokenizer)
    failed: list[Exception] = []
    if as_json:
        decode = None if vocabulary is None else vocabulary.decode
        read = ((one, _sample(opened, one, failed)) for one in chosen)
        found["shown"] = [_as_json(one, sample, decode, show_all=show_all) for one, sample in read]
        emit(found, as_json=True, text="")
        if failed:
            click.get_current_context().exit(getattr(failed[0], "exit_status", 1))
        return
    emit(found, as_json=False, text=lambda: _text(found))
    for one in chosen:  # one is in memory at a time
        sample = _sample(opened, one, failed)
        if isinstance(sample, str):
            say(f"{one['position']:,}: broken: {sample}")
        else:
            _read_out(opened, {**one, "sample": sample}, vocabulary, way, show_all=show_all)
    if failed:
        raise failed[0]


def _chosen(rows: list[dict[str, Any]], asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that were asked for.

    Raises:
        NotFound: something was asked for, and none of these is it.
        ConfigError: windows that are packed on the fly.
    """
    from penstock.errors import ConfigError, NotFound

    if any("inputs" in row for row in rows):
        raise ConfigError("--show doesn't support windows that are packed on the fly", hint="Leave out --show")
    start, index, key = asked["start"] or 0, asked["index"], asked["key"]
    chosen = [
        one for one in rows if start <= one["index"] and index in (None, one["index"]) and key in (None, one["key"])
    ]
    given = [f"--{name} {value}" for name, value in asked.items() if value is not None]
    if given and not chosen:
        hint = "Run without --show to list the index and key of each sample"
        raise NotFound("none of these samples matches", found=", ".join(given), hint=hint)
    return chosen


def _sample(opened: Any, row: dict[str, Any], failed: list[Exception]) -> Any:
    """A sample of the run; what is wrong with it, in a line, where it can't be read: the others are shown."""
    from penstock.view.facts.batches import sample_of
    from penstock.view.facts.panel import describe_error

    try:
        return sample_of(opened, row["position"])
    except Exception as error:
        failed.append(error)
        return describe_error(error)


def _as_json(one: dict[str, Any], sample: Any, decode: Any, *, show_all: bool) -> dict[str, Any]:
    if isinstance(sample, str):
        return {"position": one["position"], "broken": sample}
    return {"position": one["position"], "sample": _line({**one, "sample": sample}, decode, show_all)}


def _line(one: dict[str, Any], decode: Any, show_all: bool) -> str:
    from penstock.view.draw.terminal import line
    from penstock.view.facts.panel import panels

    return line(panels(one["sample"], decode=decode, show_all=show_all))


def _read_out(opened: Any, one: dict[str, Any], vocabulary: Any, way: Any, *, show_all: bool) -> None:
    """A sample for people: a window of tokens as text, with the borders of documents and masks; others in a line."""
    from penstock.errors import ConfigError
    from penstock.view.draw.terminal import window
    from penstock.view.facts.batches import window_tokens

    try:
        run = window_tokens(opened, one["position"], one["sample"])
    except ConfigError:  # a sample without tokens
        say(f"{one['position']:,}: {_line(one, None if vocabulary is None else vocabulary.decode, show_all)}")
        if way is not None:
            decoded_pictures(one["sample"], way)
        return
    say(f"\n{one['position']:,}: {'/'.join(one['path']) or 'source'} {one['index']:,}")
    color = has_color() and sys.stdout.isatty()
    click.echo("\n".join(f"  {text}" for text in window(run, color=color)), color=color)


def _text(found: dict[str, Any]) -> str:
    if not found["samples"]:
        return f"{found.get('document', 'nothing')}: not read in the first {found.get('steps', 0):,} steps"
    by_document = "document" in found
    packed = "inputs" in found["samples"][0]
    head = ("position", "lane", "window", "made of") if packed else ("position", "epoch", "index", "from", "key")
    rows = [
        (
            *((f"{one['step']:,}", str(one["rank"])) if by_document else ()),
            f"{one['position']:,}",
            *(_packed(one) if packed else _addressed(one)),
        )
        for one in found["samples"]
    ]
    title = (
        f"{found['document']}: read {counted(len(rows), 'time')}; steps count from 0" if by_document else _title(found)
    )
    return f"{title}\n{table(rows, header=(*(('step', 'rank') if by_document else ()), *head))}"


def _of_excluded(found: dict[str, Any]) -> str:
    count = len(found["steps"])
    title = f"{counted(count, 'step')} (counted from 0) read samples that are excluded now"
    title += f"; {found['consumed']:,} samples consumed"
    rows = [
        (str(one["step"]), str(one["rank"]), one["source"], f"{one['index']:,}", one["key"] or "-", one["reason"])
        for one in found["samples"]
    ]
    return f"{title}\n{table(rows, header=('step', 'rank', 'source', 'index', 'key', 'reason'))}" if rows else title


def _addressed(row: dict[str, Any]) -> tuple[str, ...]:
    return str(row["epoch"]), f"{row['index']:,}", "/".join(row["path"]) or "-", _key(row)


def _packed(row: dict[str, Any]) -> tuple[str, ...]:
    names = [_key(one) or f"index {one['index']:,}" for one in row["inputs"]]
    return str(row["lane"]), f"{row['window']:,}", ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def _title(found: dict[str, Any]) -> str:
    whose = "all ranks" if found["rank"] is None else f"rank {found['rank']} of {found['world']}"
    first = f"; the first {len(found['samples']):,} are listed" if found.get("of", 0) > len(found["samples"]) else ""
    return (
        f"step {found['step']:,} (counted from 0): {found.get('of', len(found['samples'])):,} samples, {whose}{first}"
    )


_MOST_DOCUMENTS = 4
"""How many documents of a window are shown."""


def _key(row: dict[str, Any]) -> str:
    if row["key"] is not None:
        return str(row["key"])
    documents = row.get("documents")
    if not documents:
        return ""
    made_of = row.get("origins") or [None] * len(documents)
    told = [
        f"document {one}{f' ({origin})' if origin else ''}, tokens {start:,} to {stop - 1:,}"
        for (one, start, stop), origin in zip(documents[:_MOST_DOCUMENTS], made_of, strict=False)
    ]
    more = len(documents) - len(told)
    return "; ".join([*told, f"{more:,} more (--json lists them)"] if more else told)
