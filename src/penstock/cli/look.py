"""Commands that look at datasets: info, head, find, diff, lineage."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import click

from penstock._printable import printable, shortened_part
from penstock.cli._options import EXECUTOR, OPENING, SAMPLES, dataset_argument, takes, wants_json
from penstock.cli._output import note, progress
from penstock.cli._pictures import (
    ROWS_OF_A_LINE,
    pictures_option,
    plain_at,
    require_one,
    show_pictures,
    show_tables,
    stored_pictures,
    warn_of,
    way_of,
    with_command_options,
)
from penstock.cli._reports import emit, say, table
from penstock.view.draw.blocks import Column, Pairs, Plot, Section, Table, Text
from penstock.view.draw.lines import to_lines
from penstock.view.draw.words import counted, human_bytes

_MOST_SHOWN = 40
"""Parts, fields or columns that are named in the text for people; JSON has them all."""
_LOOKED_AT = 100
_SHOWN_CHARACTERS = 100


# --- info --------------------------------------------------------------------------------------------------------


@click.command()
@dataset_argument("path")
@takes(f"{OPENING} excludes follow_links")
def info(path: str, **options: Any) -> None:
    """Show the format, counts, sizes, schema and document lengths of a dataset."""
    from penstock import verbs

    found = verbs.info(path, **options)
    emit(found, lambda: _info_text(found))


def _info_text(found: dict[str, Any]) -> str:
    rows = [("format", found["format"]), ("size", human_bytes(found["size_bytes"]))]
    is_tokens = "tokens" in found
    samples = "unknown: the data doesn't mark them" if found["samples"] is None else f"{found['samples']:,}"
    rows += [("documents" if is_tokens else "samples", samples)]
    if "excluded" in found:
        rows += [("excluded", f"{found['excluded']:,}, in {found['exclude_list']}")]
    if is_tokens:
        largest = found["max_token_id"]
        recorded = "not recorded" if largest is None else f"{largest:,}"
        rows += [("tokens", f"{found['tokens']:,}"), ("token width", f"{found['token_bytes']} bytes")]
        rows += [("largest ID", recorded), ("EOS", found["eos_rule"])]
        rows += _unknown_text(found)
    rows += _details(found.get("details", {}))
    if "columns" not in found.get("details", {}):
        fields = _few([f"{field['name']} ({field['kind']})" for field in found["schema"]])
        first = found.get("first_samples", {"samples": 0})
        if first["samples"]:
            shares = [f"{name} ({share:.0%})" for name, share in first["fields"].items()]
            fields = f"{_few(shares, first.get('more_fields', 0))} of the first {first['samples']:,}"
        rows += [("fields", fields or "vary by line")]
    rows += [("fingerprint", found["fingerprint"])]
    for name in ("tokenizer", "digest", "tool"):
        value = (found["manifest"] or {}).get(name)
        if value is not None:
            rows.append((name, str(value)))
    made = [Section(shortened_part(found["path"]), [Pairs(rows)])]
    if found.get("parts"):
        made.append(_parts(found["parts"]))
    if found.get("lengths"):
        lengths = found["lengths"]
        made.append(_lengths("document lengths in tokens", lengths["quantiles"], lengths["mean"], lengths["histogram"]))
    if found.get("sample_lengths"):
        lengths = found["sample_lengths"]
        bins = [(one["start"], one["stop"], one["count"]) for one in lengths["bins"]]
        title = f"sample lengths in stored bytes, {_how_many(lengths)}, from the {lengths['how']}"
        quantiles = {f"{share:g}": value for share, value in lengths["quantiles"]}
        made.append(_lengths(title, quantiles, lengths["mean"], bins))
    return "\n".join(to_lines(made))


def _parts(parts: dict[str, Any]) -> Section:
    """Describe each part: how many samples have it, its mean size, and its share of all bytes."""
    from penstock.view.facts.samples import MOST_KINDS

    rows = [
        (one["name"], f"{one['share']:.1%}", human_bytes(one["mean_bytes"]), f"{one['share_of_bytes']:.1%}")
        for one in parts["parts"][:_MOST_SHOWN]
    ]
    more = len(parts["parts"]) - len(rows)
    least = "at least " if len(parts["parts"]) >= MOST_KINDS else ""
    cut = Text(f"and {least}{more:,} more parts") if more else None
    columns = list(map(Column, ("part", "samples", "mean size", "of all bytes")))
    return Section(None, [Text(f"parts, {_how_many(parts)}"), Table(columns, rows), cut])


def _how_many(found: dict[str, Any]) -> str:
    looked_at = found["estimated_from"]
    return f"from {looked_at:,} of {found['of']:,} samples" if looked_at else f"of all {found['of']:,} samples"


def _lengths(title: str, quantiles: dict[str, int], mean: float, bins: Sequence[Any]) -> Section:
    named = {"0": "shortest", "0.5": "median", "1": "longest"}
    shares = "  ".join(f"{named.get(share, f'{float(share):.0%}')} {value:,}" for share, value in quantiles.items())
    columns = list(map(Column, ("from", "to", "samples")))
    plot = Plot("bars", title, "samples", Table(columns, bins))
    return Section(None, [Text(title), Text(shares), Text(f"mean {mean:,.1f}"), plot])


def _unknown_text(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return rows about unknown text, as recorded by `pack`."""
    counts = (found["manifest"] or {}).get("unknown_text") or {}
    unknown, dropped = counts.get("unknown_tokens"), counts.get("dropped_characters")
    share = f" ({unknown / found['tokens']:.2%} of all)" if unknown and found["tokens"] else ""
    rows = [("unknown text", f"{counted(unknown, 'token')}{share}")] if unknown else []
    return [*rows, ("dropped text", f"{counted(dropped, 'character')} with no token")] if dropped else rows


def _few(words: list[str], more: int = 0) -> str:
    more += max(0, len(words) - _MOST_SHOWN)
    return ", ".join(words[:_MOST_SHOWN]) + (f" and {more:,} more" if more else "")


def _details(details: dict[str, Any]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in details.items():
        label, _, unit = name.replace("_", " ").rpartition(" ")
        if value is None:
            rows.append((name.replace("_", " "), "none"))
        elif unit == "bytes":
            rows.append((label, human_bytes(value)))
        elif isinstance(value, str):
            rows.append((name.replace("_", " "), value))
        elif isinstance(value, int):
            number = counted(value, unit[:-1]) if unit.endswith("s") else f"{value:,} {unit}"
            rows.append((label, number) if label else (unit, f"{value:,}"))
        elif isinstance(value, dict):
            rows.append((name.replace("_", " "), _few([f"{one} ({text})" for one, text in value.items()])))
        else:
            rows.append((name.replace("_", " "), _few(list(value)) or "none"))
    return rows


# --- head --------------------------------------------------------------------------------------------------------


@click.command()
@dataset_argument("path")
@takes(
    f"limit {OPENING} flavor columns trust excludes {SAMPLES}",
    limit={
        "type": click.IntRange(min=0),
        "show_default": "5, or 1 with --index or --key",
        "help": "Number of samples to show.",
    },
    trust="Also decode pickled columns, which runs code stored with the data.",
)
@pictures_option
@takes("follow_links")
def head(
    path: str, limit: int | None, columns: str | None, start: int | None, index: int | None, key: str | None,
    tokenizer: str | None, show_all: bool, pictures: str | None, **options: Any,
) -> None:  # fmt: skip
    """Show the first samples, or the samples you choose.

    Each sample is one line, or with --pictures a table of its fields with texts, sizes and pictures. Use --json to get
    the values.
    """
    from penstock.formats._opening import skipping_invalid_lines
    from penstock.view.draw.terminal import line
    from penstock.view.facts.opening import open_target
    from penstock.view.facts.samples import sample_at

    require_one()
    options = {name: value for name, value in options.items() if name != "flavor" or value is not None}
    options["columns"] = None if columns is None else columns.split(",")
    way = way_of(pictures)
    with skipping_invalid_lines():
        if columns is not None:
            _require_columns(path, options)
        if wants_json():
            _head_json(path, (start, index, key), limit, tokenizer, options, show_all=show_all)
            return
    opened = open_target(path, tokenizer=tokenizer, **options)
    _ = opened.vocabulary  # a missing one is an error before anything is read
    warn_of(opened.other_tokenizer)
    indices = _indices(opened.source, (start, index, key), limit)
    _say_fields(opened)
    if not indices:
        nothing = "no samples" if not indices.start else f"{len(opened):,} samples, none from {indices.start:,} on"
        say(f"{path}: {nothing}")
    if pictures not in (None, "none"):
        show_tables(opened, indices, way, show_all=show_all)
        return
    failed: list[Exception] = []
    width = shutil.get_terminal_size().columns - 2
    for at in indices:
        found = with_command_options(sample_at(opened, at, show_all=show_all, failed=failed.append))
        say(f"{at}: {line(found)}")
        if way is not None:
            show_pictures(found, stored_pictures(opened, at, way, width, ROWS_OF_A_LINE))
    if failed:
        raise failed[0]


def _say_fields(opened: Any) -> None:
    """Name the fields that Python returns and the stored parts that they come from, if dataset.yaml maps them."""
    from penstock.formats.samples.webdataset.details import read_sample_type
    from penstock.formats.samples.webdataset.nvmeta import DATASET_YAML, meta_path

    if opened.format != "webdataset" or opened.place is None:
        return
    root = opened.place.path.rstrip("/") or opened.place.path
    named = read_sample_type(opened.place.store, meta_path(root, DATASET_YAML))
    if " of " in named and not named.startswith("can't"):
        click.echo(
            printable(f"stored parts; in Python and in training, {named.replace(' of ', ' with ', 1)}"), err=True
        )


def _head_json(
    path: str, chosen: tuple[int | None, int | None, str | None], count: int | None, tokenizer: str | None,
    options: dict[str, Any], *, show_all: bool,
) -> None:  # fmt: skip
    from penstock.formats import open_source
    from penstock.look.head import decoder

    source = open_source(path, **options)
    left_out = [] if options["trust"] else [one.name for one in source.schema.fields if one.kind == "pickle"]
    if left_out:
        options["columns"] = [one.name for one in source.schema.fields if one.name not in left_out]
        source = open_source(path, **options)
    decodes = source.recipe().get("format") == "mds"  # pickles of litdata aren't decoded at all
    pickled = dict.fromkeys(left_out, "<a pickle: --trust decodes it>" if decodes else "<a pickle>")
    decode = decoder(tokenizer)

    def shown(at: int) -> dict[str, Any]:
        return {"index": at} | plain_at(source, at, decode, show_all=show_all, more=pickled)

    samples = list(map(shown, _indices(source, chosen, count)))
    fields = _field_map(path, options)
    emit({"path": path, "samples": samples} | ({"fields": fields} if fields else {}), "")


def _field_map(path: str, options: dict[str, Any]) -> dict[str, str]:
    """Return field → its stored parts, if dataset.yaml maps them."""
    from penstock.formats import find_format
    from penstock.formats.samples.webdataset.details import read_field_map
    from penstock.store.place import dataset_at
    from penstock.types import OpenOptions

    place = dataset_at(path, follow_links=bool(options.get("follow_links")))
    if find_format(place, options.get("format"), OpenOptions(layout=options.get("layout"))).name != "webdataset":
        return {}
    return read_field_map(place.store, place.path.rstrip("/") or place.path)


def _indices(source: Any, chosen: tuple[int | None, int | None, str | None], count: int | None) -> range:
    from penstock.look.head import first_of

    start, index, key = chosen
    first = first_of(source, start, index, key)
    usual = 5 if index is None and key is None else 1
    return range(first, min(first + (usual if count is None else count), len(source)))


def _require_columns(path: str, options: dict[str, Any]) -> None:
    """Raise `ConfigError` if none of the first samples has a requested field."""
    from penstock._naming import nearest
    from penstock.errors import ConfigError, Excluded, Unsupported
    from penstock.formats import open_source

    every: dict[str, Any] = {**options, "columns": None}
    source = open_source(path, **every)
    try:
        known = {one.name for one in source.schema.fields}
    except Unsupported:  # files of tables may differ in other columns
        return
    for index in range(min(len(source), _LOOKED_AT) if source.schema.open else 0):
        if known.issuperset(options["columns"]):
            break
        with contextlib.suppress(Excluded):
            known.update(source[index])
    for name in options["columns"]:
        if name not in known and len(source):
            close, names = nearest(name, known), ", ".join(sorted(known))
            hint = f"Did you mean {close!r}?" if close else None
            raise ConfigError(
                "no sample has this field", path=path, found=repr(name), expected=f"one of {names}", hint=hint
            )


# --- find --------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("target", nargs=-1, required=True)
@takes("key", key="Find the sample with this key.")
@click.option("--text", metavar="TEXT", help="Find samples that contain this text in any field.")
@takes(
    f"where limit key_field tokenizer {OPENING} excludes trust {EXECUTOR} follow_links",
    "the target",
    where="Find samples that match an expression, such as: lang == 'en' and len(text) > 200",
    limit={"type": click.IntRange(min=1), "help": "Stop after this many matches."},
    tokenizer="A tokenizer.json or its directory, to search tokenized documents with --text.",
    excludes="Exclude list of the dataset, or none to read all samples.",
)
def find(target: tuple[str, ...], **options: Any) -> int:
    """Find samples by key, text or expression.

    Prints the index, key and location of each match. Exits with 1 if nothing matches.
    """
    from penstock.look.find import find

    with progress("find", total=None, unit="samples") as advance:
        report = find(target[0] if len(target) == 1 else target, progress=advance, **options)
    if options["tokenizer"] is not None and len(target) == 1:
        from penstock.view.facts.opening import open_target

        names = (*OPENING.split(), "excludes", "tokenizer", "follow_links")
        warn_of(open_target(target[0], **{name: options[name] for name in names}).other_tokenizer)
    rows = [
        (str(one.index), one.key or "-", one.path, (one.place or "-") + ", excluded" * one.excluded)
        for one in report.found
    ]
    read = f"read {report.looked_at:,} of {report.of:,} samples" if report.looked_at else "from the key index"
    lines = [table(rows, header=("index", "key", "path", "place"))] if rows else []
    emit(report, "\n".join([*lines, f"{len(rows):,} found; {read}"]))
    return 0 if report.found else 1


# --- diff --------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("a")
@click.argument("b")
@click.option(
    "--as",
    "compare_as",
    type=click.Choice(["sequence", "set"]),
    default="sequence",
    show_default=True,
    help="Compare in order (sequence), or in any order (set). Duplicates count.",
)
@takes(OPENING, "both datasets")
@takes("excludes", "A", excludes={"names": ("--excludes-a",)})
@takes("excludes", "B", excludes={"names": ("--excludes-b",)})
@takes(f"trust {EXECUTOR} follow_links")
def diff(a: str, b: str, **options: Any) -> int:
    """Compare two datasets sample by sample, in any formats.

    Exits with 1 if they differ.
    """
    from penstock.look.diff import diff

    with progress("diff", total=None, unit="samples") as advance:
        report = diff(a, b, progress=advance, **options)
    emit(report, lambda: _diff_text(report))
    return 0 if report.equal else 1


def _diff_text(report: Any) -> str:
    if report.equal:
        how = ", by the digests in their side files; no samples were read" if report.by == "side files" else ""
        return f"equal: {counted(report.num_a, 'sample')}{how}"
    lines: list[str] = []
    if report.num_reordered:
        lines.append(f"same samples, different order: {report.num_reordered:,} of {report.num_a:,} positions differ")
    for name, other, missing, num in (
        ("A", "B", report.only_in_a, report.num_a),
        ("B", "A", report.only_in_b, report.num_b),
    ):
        if missing:
            verb = "is" if missing == 1 else "are"
            lines.append(f"{missing:,} of {num:,} samples of {name} {verb} missing from {other}")
    for side, planes in (("A", report.planes_only_in_a), ("B", report.planes_only_in_b)):
        if planes:
            names = ", ".join(planes)
            lines.append(f"planes only in {side}: {names}; --planes none compares only the token IDs")
    for side, other in ((report.schema.a, report.schema.b), (report.schema.b, report.schema.a)):
        only = ", ".join(sorted(side.keys() - other.keys()))
        lines += [f"fields only in {'A' if side is report.schema.a else 'B'}: {only}"] if only else []
    lines += _restored_name(set(report.schema.a), set(report.schema.b))
    for one in report.first_differences:
        for name, index, key, sample in (("A", one.index_a, one.key_a, one.a), ("B", one.index_b, one.key_b, one.b)):
            if index is not None:
                shown = ", ".join(f"{field}: {value}" for field, value in (sample or {}).items())
                lines.append(f"{name} {index:,}{f' ({key})' if key else ''}: {shown}")
    return "\n".join(lines)


def _restored_name(a: set[str], b: set[str]) -> list[str]:
    """Suggest a conversion if fields differ only by the suffixes of parts in tars."""
    for whole, parts in ((a - b, b - a), (b - a, a - b)):
        as_part = next((part for part in sorted(parts) if part.rpartition(".")[0] in whole), None)
        if as_part is not None:
            name = as_part.rpartition(".")[0]
            return [f"  {name} is the part {as_part} in tars: `penstock convert TARS NEW --to mds` restores the name"]
    return []


# --- lineage -----------------------------------------------------------------------------------------------------


@click.command()
@click.argument("target")
@click.option(
    "--look-in",
    multiple=True,
    metavar="DIR",
    help="Also look for inputs in this directory; can be given several times.",
)
def lineage(target: str, look_in: tuple[str, ...]) -> None:
    """Show the tree of inputs and commands that made a dataset.

    Inputs are identified by the digests recorded in side files.
    """
    from penstock.look.lineage import lineage

    found = lineage(target, look_in=look_in)
    if _lacks(found):
        note("some inputs were not found. If they are in another folder, name it with --look-in DIR")
    emit(found, lambda: "\n".join(_lineage_lines(found, 0)))


def _lacks(origin: Any) -> bool:
    return origin.state == "not found" or any(map(_lacks, origin.inputs))


def _lineage_lines(origin: Any, depth: int) -> Iterator[str]:
    options = {name: value for name, value in origin.made_by.items() if name != "command" and value is not None}
    shown = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in options.items()]
    said = [origin.made_by.get("command"), origin.tokenizer, " ".join(shown)]
    how = ", ".join(printable(str(one))[:_SHOWN_CHARACTERS] for one in said if one)
    count = f", {counted(origin.samples, 'sample')}" if origin.samples is not None else ""
    state = {"same": "unchanged", "output": "output"}.get(origin.state, origin.state)
    yield f"{'  ' * depth}{printable(origin.path)}: {state}{count}{f'; {how}' if how else ''}"
    for one in origin.inputs:
        yield from _lineage_lines(one, depth + 1)
