"""Commands that write new datasets from others: merge, shuffle, split, filter; and exclude and purge."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from penstock.cli._options import (
    EXECUTOR,
    OPENING,
    SHARED,
    TARS,
    WHOLE,
    dataset_argument,
    refuse_given,
    takes,
    wants_json,
)
from penstock.cli._output import note, progress
from penstock.cli._reports import describe, emit, emit_shared, emit_written, keeping, table
from penstock.view.draw.words import counted, human_bytes

if TYPE_CHECKING:
    from penstock.reshape.reorder import ShuffleCost

_RESTART = "Running jobs don't see the change: restart them, and they resume exactly."


def _keeping(output: str, options: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Report at an interrupt how much work of a distributed job is kept."""
    is_shared = options["part"] is not None or options["finish"] or options["executor"] is not None
    return keeping(output) if is_shared else contextlib.nullcontext()


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, as arguments of the verb."""
    given = {name: value for name, value in options.items() if value is not None}
    if given.pop("planes", "auto") == "none":
        given["drop_planes"] = True
    if "token_bytes" in given:
        given["token_bytes"] = int(given["token_bytes"])
    return given


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@takes("output token_bytes", output="Path of the merged dataset.")
@click.option("--mix-tokenizers", is_flag=True, help="Allow sources with different tokenizers or EOS IDs.")
@click.option(
    "--no-copy",
    is_flag=True,
    help="Don't copy shards of samples: only write an index of all shards, which have to be in OUTPUT.",
)
@takes(f"{TARS} {SHARED} {WHOLE}", "the source")
def merge(sources: tuple[str, ...], output: str, **options: Any) -> None:
    """Join datasets of documents, JSONL files or directories of shards, in the given order.

    To distribute the work, run it with --part on each machine, with OUTPUT on shared storage, then once with --finish.
    """
    from penstock.reshape.merge import merge

    with _keeping(output, options), progress("merge", total=None, unit="samples") as advance:
        report = merge(sources, output, progress=advance, **_given(options))
    if report.shards is not None:
        emit({"path": output, "shards": report.shards}, f"{output}: index of {counted(report.shards, 'shard')}")
        return
    text = f"{describe(report.output)}, from {counted(len(report.inputs), 'source')}"
    emit_shared(report, [report.output], [text], sources, options)


@click.command()
@dataset_argument("source")
@takes(
    "output seed token_bytes",
    output="Path of the shuffled dataset.",
    seed={"default": 0, "show_default": True, "help": "Seed of the order: the first epoch of penstock.Shuffle."},
)
@click.option(
    "--memory-mb",
    type=click.IntRange(min=1),
    show_default="48 to 112",
    help="Memory for documents in MiB; more is faster if the data doesn't fit in memory.",
)
@takes(f"{TARS} {SHARED} {WHOLE}", "the source")
def shuffle(source: str, output: str, memory_mb: int | None, **options: Any) -> None:
    """Write documents, lines or samples in random order.

    Memory is bounded, so the data may be larger than memory. The amount to read is printed first (with --json:
    `cost`).

    To distribute the work, run it with --part on each machine, with OUTPUT on shared storage, then once with --finish.
    """
    from penstock.reshape.shuffle import shuffle

    costs: list[ShuffleCost] = []

    def announce(cost: ShuffleCost) -> None:
        costs.append(cost)
        if not wants_json():
            note(_cost_text(cost))

    given: dict[str, Any] = _given(options) | ({} if memory_mb is None else {"memory_bytes": memory_mb << 20})
    with _keeping(output, options), progress("shuffle", total=None, unit="samples") as advance:
        written = shuffle(source, output, progress=advance, announce=announce, **given)
    text = f"{describe(written)} (seed {options['seed']})"
    emit_shared(written, [written], [text], (source,), options, cost=costs[0] if costs else None)


def _cost_text(cost: ShuffleCost) -> str:
    where = "requests" if cost.is_remote else "random reads"
    text = f"reads {human_bytes(cost.read_bytes)} in at most {cost.reads:,} {where}"
    text += f", and uses {human_bytes(cost.scratch_bytes)} of scratch space" if cost.scratch_bytes else ""
    return text + (f"; cheaper: {cost.cheaper}" if cost.cheaper else "")


_OF_RATIO = f"names seed by {TARS} {SHARED}".split()


@click.command()
@dataset_argument("source")
@takes(
    "output",
    output="With --ratio: directory of the parts, named <stem>_<name><suffix>. With --parts: path of the part.",
)
@click.option("--ratio", metavar="A,B,…", help="Relative size of each part, such as 8,1,1.")
@click.option("--parts", type=int, metavar="N", help="Number of contiguous parts. Write one of them with --only.")
@click.option("--only", type=int, metavar="I", help="The contiguous part to write, from 0.")
@click.option(
    "--names",
    metavar="NAME,…",
    show_default="train,validation,test for two or three parts, else numbers",
    help="Names of the parts.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the assignment.")
@click.option(
    "--by",
    type=click.Choice(["position", "content"]),
    default="position",
    show_default=True,
    help="Assign by position (exact sizes) or by content (equal documents share a part, sizes are approximate).",
)
@takes(f"token_bytes {TARS} {SHARED} {WHOLE}", "the source")
def split(
    source: str, output: str, ratio: str | None, parts: int | None, only: int | None, names: str | None, **options: Any
) -> None:
    """Split a dataset by ratio, or extract one of N contiguous parts.

    With --ratio, each document, line or sample is randomly assigned to one part, and all parts are written. To
    distribute the work, run it with --part on each machine, with OUTPUT on shared storage, then once with --finish.

    With --parts N --only I, the dataset is cut into N contiguous parts of equal length (the first parts are one longer
    if the length isn't divisible by N), and part I, counted from 0, is written.

    Both keep the order within each part.
    """
    from penstock.errors import ConfigError
    from penstock.reshape.split import split
    from penstock.store.place import place_of

    if (ratio is None) == (parts is None):
        raise click.UsageError("Give either --ratio 8,1,1 or --parts N --only I.")
    if (parts is None) != (only is None):
        raise click.UsageError("--parts N and --only I must be given together.")
    if parts is None:
        refuse_given(("token_bytes",), "--ratio keeps the width of token IDs")
    else:
        refuse_given(_OF_RATIO, "Contiguous parts are cut by one process, without a seed")
    try:
        shares = None if ratio is None else [float(share) for share in ratio.split(",")]
    except ValueError:
        raise ConfigError("not shares of a split", found=ratio, expected="numbers such as 8,1,1") from None
    cut: dict[str, Any] = {"ratio": shares, "parts": parts, "only": only, "names": names and names.split(",")}
    work = place_of(output).child(place_of(source).name).path
    with _keeping(work, options), progress("split", total=None, unit="samples") as advance:
        written = split(source, output, progress=advance, **cut, **_given(options))
    mode = f"part {only} of {parts} contiguous parts, counted from 0"
    if ratio is not None:
        mode = f"ratio {ratio} by {options['by']}, seed {options['seed']}"
    data = {"mode": "ratio" if parts is None else "contiguous", "parts": written}
    emit_shared(data, written, [f"{describe(one)} ({mode})" for one in written], (source,), options, work=work)


@click.command()
@dataset_argument("source")
@takes("output", output="Path of the filtered dataset.")
@click.option("--min-tokens", type=int, help="Minimum document length in tokens, including EOS.")
@click.option("--max-tokens", type=int, help="Maximum document length in tokens, including EOS.")
@click.option("--match", metavar="REGEX", help="Regular expression to search for in --field.")
@click.option(
    "--field",
    metavar="NAME",
    default="text",
    show_default=True,
    help="Field that --match searches, such as meta.title.",
)
@takes(
    "where indices",
    where="Expression on fields, such as: lang == 'en' and len(text) > 200",
    indices="File of indices (from 0) to keep: one per line, or .npy.",
)
@click.option("--invert", is_flag=True, help="Keep what doesn't match instead.")
@takes(f"token_bytes {SHARED} {WHOLE}", "the source")
def filter(source: str, output: str, **options: Any) -> None:
    """Keep the documents, lines or samples that meet all conditions.

    Their order doesn't change. To distribute the work, run it with --part on each machine, with OUTPUT on shared
    storage, then once with --finish.
    """
    from penstock.reshape.filter import filter

    with _keeping(output, options), progress("filter", total=None, unit="samples") as advance:
        report = filter(source, output, progress=advance, **_given(options))
    if options["part"] is None and not report.output.missing:
        if not report.output.samples:
            note("warning: no samples match, so the output is empty")
        elif not report.dropped and not report.output.was_complete:
            note("warning: all samples match, so nothing was removed")
    text = f"{describe(report.output)}; {report.dropped:,} removed"
    emit_shared(report, [report.output], [text], (source,), options)


@click.command()
@dataset_argument("target")
@click.option("--key", "keys", metavar="KEY", multiple=True, help="Sample with this key; can be given several times.")
@takes(
    "indices where",
    indices="Samples at the indices (from 0) in this file: one per line, or .npy.",
    where="Samples that match an expression, such as: url == 'https://ex.org/17'",
)
@click.option("--reason", metavar="TEXT", help="Reason to record, along with the user and time.")
@click.option(
    "--excludes",
    "list",
    metavar="FILE",
    show_default="next to the dataset",
    help="The exclude list to change or show.",
)
@click.option("--undo", is_flag=True, help="Remove the selected samples, or all, from the exclude list.")
@click.option("--show", is_flag=True, help="List excluded samples and the reasons.")
@click.option(
    "--also",
    multiple=True,
    metavar="DERIVED",
    help="Also exclude them in a dataset made from TARGET, directly or in several steps; can be given several times.",
)
@takes(f"key_field {OPENING} trust dry_run follow_links", "the target")
def exclude(target: str, keys: tuple[str, ...], show: bool, **options: Any) -> None:
    """Exclude samples from a dataset without rewriting it.

    Excluded samples are recorded in a list next to the dataset and skipped whenever it is opened. Running jobs have to
    be restarted. To delete the samples, run `penstock purge`.
    """
    if show:
        _show_excluded(target, keys, options)
        return

    from penstock.look.exclude import exclude

    report = exclude(target, key=keys or None, **options)
    changed = (*(report.files or (report,)), *report.also)
    lines = [_exclude_text(one, undone=options["undo"]) for one in changed]
    lists = [one.path for one in changed]
    if report.added or report.removed:
        lines.append(_RESTART)
    emit_written(report, lines, (target,), lists, options | {"overwrite": True})


def _show_excluded(target: str, keys: tuple[str, ...], options: dict[str, Any]) -> None:
    from penstock.look.exclude import excluded_samples

    changing = ("indices", "where", "reason", "undo", "also", "key_field", "dry_run")
    if any([keys, *[options.pop(name) for name in changing]]):
        raise click.UsageError("--show can't be combined with options that select or change samples.")
    found = excluded_samples(target, **options)
    rows = [(str(one.index), one.key or "-", one.reason, one.time, one.who) for one in found.entries]
    lines = [table(rows, header=("index", "key", "reason", "time", "who"))] if rows else []
    text = "\n".join([*lines, f"{counted(len(rows), 'sample')} excluded"])
    emit({"path": found.path, "digest": found.digest, "entries": found.entries}, text)


def _exclude_text(report: Any, *, undone: bool) -> str:
    done = f"{report.removed:,} removed from the list" if undone else f"{report.added:,} added"
    already = f", {report.already:,} unchanged" if report.already else ""
    return f"{report.path}: {done}{already}; {counted(report.entries, 'sample')} excluded"


@click.command()
@click.argument("target")
@takes("output", output="Path of the new dataset.")
@click.option("--excludes", "list", metavar="FILE", show_default="next to the dataset", help="The exclude list.")
@takes(f"to overwrite {OPENING} {EXECUTOR} dry_run follow_links", "the target")
def purge(target: str, output: str, **options: Any) -> None:
    """Rewrite a dataset without excluded samples and issue a removal certificate.

    The certificate, OUTPUT.certificate.json, lists the removed samples. TARGET is not changed.
    """
    from penstock.look.purge import purge

    with progress("purge", total=None, unit="samples") as advance:
        report = purge(target, output, progress=advance, **options)
    text = f"{report.path}: {counted(report.samples, 'sample')}, {report.removed:,} removed; {report.certificate}"
    emit_written(report, [text], (target,), (output,), options)
