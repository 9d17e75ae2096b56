"""Commands about runs: plan, explain, stage; and the cache."""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from penstock.cli._options import SAMPLES, has_color, is_given, refuse_given, run_options, takes, wants_json
from penstock.cli._output import note
from penstock.cli._pictures import decoded_pictures, pictures_option, require_one, warn_of, way_of
from penstock.cli._reports import emit, say, table
from penstock.errors import ConfigError
from penstock.view.draw.words import counted, human_bytes

if TYPE_CHECKING:
    from penstock.load.metrics import Metrics

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_MOST_DOCUMENTS = 4
"""Documents of a window that are shown."""
_DOCUMENT = (
    "List the steps that read a document instead: the key of a sample, the number of a document, or FILE[INDEX] of "
    "data made with --keep-map."
)


def _open_run(recipe: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the stream or source of a run over a recipe, and its `global_batch` and `world`."""
    from penstock.view.facts.opening import open_run as opened

    taken = ("mode", "seed", "lanes", "global_batch", "world", "trust", "follow_links")
    given = {name: options[name] for name in taken} | ({"split": options["split"]} if is_given("split") else {})
    found = opened(recipe, **given, refuse=refuse_given)
    batch = {"global_batch": found.global_batch, "world": found.world}
    return found.data, {name: value for name, value in batch.items() if value is not None}


def _open_dataset_or_run(target: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Open a recipe as `_open_run` does, or a dataset if `target` isn't named like a recipe."""
    from penstock.formats import open_source
    from penstock.view.facts.opening import is_recipe, ordered

    if is_recipe(target):
        return _open_run(target, options)
    if options["mode"] is not None:
        raise click.UsageError(
            "--mode is for metadatasets; a dataset is shuffled with --seed, otherwise read once in order."
        )
    given = {"split": options["split"]} if is_given("split") else {}
    data = open_source(target, trust=options["trust"], follow_links=options["follow_links"], **given)
    if options["lanes"] is not None and options["seed"] is None:
        raise click.UsageError("--lanes needs --seed: without a seed, a dataset is read once in order.")
    data = ordered(data, shuffled=options["seed"] is not None, seed=options["seed"], lanes=options["lanes"])
    return data, {key: options[key] for key in ("global_batch", "world") if options[key] is not None}


@click.command()
@click.argument("recipe")
@run_options
@takes("steps")
@click.option(
    "--profile",
    type=click.IntRange(1),
    help="Read this many steps as rank 0, and report which stage is the bottleneck.",
)
@click.option(
    "--workers", type=click.IntRange(0), default=2, show_default=True, help="Number of loader threads for --profile."
)
def plan(recipe: str, steps: int | None, profile: int | None, workers: int, **options: Any) -> None:
    """Show the samples, epochs, tokens and bytes that a run will read.

    Lists them for each source, with padding and requests, and prints warnings, for example about
    repeated data.
    """
    # Import before measuring: the plan doesn't include the time of imports.
    import penstock.recipe  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from penstock.load.plan import plan

    began = time.perf_counter()
    data, batch = _open_run(recipe, options)
    opened = time.perf_counter() - began
    found = plan(data, **({"global_batch": None, "world": None} | batch), steps=steps, opened_seconds=opened)
    if profile is None:
        refuse_given(("workers",), "This option needs --profile")
    measured = None if profile is None else _measured(data, batch, profile, workers)
    profiled = {} if measured is None else {"profile": dataclasses.asdict(measured)}
    text = "" if measured is None else f"\n\n{measured.profile()}"
    emit({"recipe": recipe, **found, **profiled}, lambda: _plan_text(recipe, found) + text)
    if not wants_json():
        for warning in found["warnings"]:
            note(f"warning: {warning}")


def _measured(data: Any, batch: dict[str, Any], steps: int, workers: int) -> Metrics:
    """Return the loader's metrics after reading some steps as rank 0, as fast as possible."""
    from penstock._kinds import is_lane_stream, is_stream
    from penstock.load import Loader

    if batch.get("global_batch") is None:
        raise ConfigError(
            "--profile needs the batch size", hint="Pass --global-batch, or set it in the recipe's `batch`"
        )
    tail = None if is_stream(data) or is_lane_stream(data) else batch.get("tail", "pad")
    world = batch.get("world") or 1
    loader = Loader(data, batch["global_batch"], rank=0, world=world, workers=workers, tail=tail)
    batches = iter(loader)
    for _ in islice(batches, steps * loader.global_batch // (loader.world * loader.micro_batch)):
        pass
    batches.close()
    return loader.metrics()


def _plan_text(recipe: str, found: dict[str, Any]) -> str:
    from penstock.view.facts.run import estimated

    rows = [
        (
            one["path"],
            f"{one['samples']:,}",
            f"{one['reads']:,}",
            f"{one['epochs']:,.2f}",
            f"{one['share']:.2%}",
            "-" if one["tokens"] is None else f"{one['tokens']:,}",
            "-" if one["padding"] is None else f"{one['padding']:.1%}",
            "-" if one["bytes"] is None else human_bytes(one["bytes"]),
            f"{one['requests']:,}",
        )
        for one in found["sources"]
    ]
    head = ("source", "samples", "reads", "epochs", "share", "tokens", "padding", "bytes", "requests")
    steps = ""
    if found["steps"] is not None:
        steps = f", {found['steps']:,} steps (0 to {found['steps'] - 1:,}) of {found['global_batch']:,}"
    tokens = "" if found["tokens"] is None else f", {found['tokens']:,} tokens"
    cache = f"cache for remote data: {human_bytes(found['cache_bytes'])}"
    start = f"first batch after about {found['start_up_seconds']:.2f} s"
    known = f"\npadding, bytes and requests are {how}" if (how := estimated(found["sources"])) else ""
    told = f"{table(rows, header=head)}{known}\n{cache}; {start}"
    return f"{recipe}: {found['samples']:,} samples{steps}{tokens}\n{told}"


@click.command()
@click.argument("recipe")
@run_options
@click.option("--step", type=click.IntRange(0), help="Step to explain, from 0. With --document: last step to search.")
@click.option("--rank", type=click.IntRange(0), help="Only list the samples of this rank, from 0.")
@takes("state")
@click.option("--document", metavar="KEY", help=_DOCUMENT)
@click.option(
    "--excluded", is_flag=True, help="List the steps before --state that read samples which are excluded now."
)
@takes(
    "limit",
    limit={
        "type": click.IntRange(1),
        "show_default": "all samples of a step, else 1000",
        "help": "Maximum number of rows to list.",
    },
)
@click.option(
    "--show", is_flag=True, help="Show the samples too: all, or those that --start, --index or --key selects."
)
@takes(SAMPLES)
@pictures_option
def explain(
    recipe: str, step: int | None, rank: int | None, state: str | None, document: str | None, excluded: bool,
    limit: int | None, show: bool, start: int | None, index: int | None, key: str | None, tokenizer: str | None,
    show_all: bool, pictures: str | None, **options: Any,
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
        refuse_given(f"{SAMPLES} pictures".split(), "These options need --show")
    if excluded and (step is not None or document is not None or rank is not None or show or state is None):
        raise click.UsageError(
            "--excluded needs --state FILE and can't be combined with --step, --rank, --document or --show."
        )
    if step is None and document is None and not excluded:
        raise click.UsageError("Give --step K, --document KEY or --excluded.")
    most = 1000 if limit is None else limit
    data, batch = _open_run(recipe, options)
    saved = None if state is None else read_state(state)
    run = run_of(data, batch.get("global_batch"), batch.get("world"), saved)
    if excluded:
        steps = explain_excluded(run, most)
        emit(steps, lambda: _of_excluded(steps))
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
        emit(found, lambda: _explained_text(found))
        return
    chosen = _chosen(found["samples"], {"start": start, "index": index, "key": key})
    opened, way = OpenedRun(recipe, run.data, None, None, tokenizer), way_of(pictures)
    vocabulary = opened.vocabulary
    warn_of(opened.other_tokenizer)
    failed: list[Exception] = []
    if wants_json():
        decode = None if vocabulary is None else vocabulary.decode
        read = ((one, _sample(opened, one, failed)) for one in chosen)
        found["shown"] = [_sample_json(one, sample, decode, show_all=show_all) for one, sample in read]
        emit(found, "")
        if failed:
            click.get_current_context().exit(getattr(failed[0], "exit_status", 1))
        return
    say(_explained_text(found))
    for one in chosen:  # only one sample is in memory at a time
        sample = _sample(opened, one, failed)
        if isinstance(sample, str):
            say(f"{one['position']:,}: broken: {sample}")
        else:
            _read_out(opened, {**one, "sample": sample}, vocabulary, way, show_all=show_all)
    if failed:
        raise failed[0]


def _chosen(rows: list[dict[str, Any]], asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that --start, --index or --key selects.

    Raises:
        NotFound: none matches.
        ConfigError: the windows are packed on the fly.
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
    """Return a sample of the run, or one line about the error if it can't be read."""
    from penstock.view.facts.batches import sample_of
    from penstock.view.facts.panel import describe_error

    try:
        return sample_of(opened, row["position"])
    except Exception as error:
        failed.append(error)
        return describe_error(error)


def _sample_json(one: dict[str, Any], sample: Any, decode: Any, *, show_all: bool) -> dict[str, Any]:
    if isinstance(sample, str):
        return {"position": one["position"], "broken": sample}
    return {"position": one["position"], "sample": _line({**one, "sample": sample}, decode, show_all)}


def _line(one: dict[str, Any], decode: Any, show_all: bool) -> str:
    from penstock.view.draw.terminal import line
    from penstock.view.facts.panel import panels

    return line(panels(one["sample"], decode=decode, show_all=show_all))


def _read_out(opened: Any, one: dict[str, Any], vocabulary: Any, way: Any, *, show_all: bool) -> None:
    """Print a sample: a window of tokens as text with document borders and masks, other samples in one line."""
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


def _explained_text(found: dict[str, Any]) -> str:
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


@click.command()
@click.argument("recipe")
@run_options
@click.option("--hosts", type=click.IntRange(1), required=True, help="Number of hosts of the run.")
@click.option("--host", type=click.IntRange(0), required=True, help="Number of this host, from 0.")
@takes("steps")
def stage(recipe: str, hosts: int, host: int, steps: int | None, **options: Any) -> None:
    """Pre-download the remote files that this host will read.

    Files are copied to the cache directory; see `penstock cache`. RECIPE can also be a dataset, which is read once in
    order, or shuffled with --seed. The --world ranks (one per host if omitted) are divided among hosts in consecutive
    blocks of equal size.
    """
    from penstock.load.stage import stage

    data, batch = _open_dataset_or_run(recipe, options)
    found = stage(data, hosts=hosts, host=host, **({"global_batch": None, "world": None} | batch), steps=steps)
    text = (
        f"{recipe}: host {host} of {hosts} reads {found['files']:,} files, {human_bytes(found['bytes'])}; "
        f"{human_bytes(found['fetched_bytes'])} downloaded now, all files are in the cache"
    )
    nothing = f"{recipe}: all data is local, so there is nothing to stage"
    emit({"recipe": recipe, **found}, text if found["files"] else nothing)


@click.command()
@click.option("--trim", metavar="SIZE", help="Remove least recently used entries down to this size, such as 50GB.")
@click.option("--clear", is_flag=True, help="Remove everything, except entries that are being written.")
def cache(trim: str | None, clear: bool) -> None:
    """Show, trim or clear the cache directory.

    The cache holds copies of remote files and results computed from data. It is $PENSTOCK_CACHE, or penstock in the
    user's cache directory. --trim and --clear are safe while other processes run: open files stay usable, and removed
    entries are recreated when needed.
    """
    from penstock import verbs

    data = verbs.cache(trim=None if trim is None else _bytes(trim), clear=clear)
    rows = [(one["name"], f"{one['files']:,} files", human_bytes(one["size_bytes"])) for one in data["folders"]]
    lines = [f"{data['path']}: {human_bytes(data['size_bytes'])}", *("  " + line for line in table(rows).splitlines())]
    lines += [f"removed {human_bytes(data['removed_bytes'])}"] if trim is not None or clear else []
    emit(data, "\n".join(lines))


def _bytes(given: str) -> int:
    """`50GB` in bytes, in powers of ten."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)b?", given.strip().lower())
    if found is None:
        raise click.BadParameter(f"{given!r} is not a size such as 50GB.", param_hint="--trim")
    return int(min(float(found[1]) * _UNITS[found[2]], sys.maxsize))
