"""Facts of datasets and runs as sections, for pages, reports, notebooks and terminals alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any
from urllib.parse import quote

from penstock.types import Field
from penstock.view.draw.blocks import (
    Amount,
    Block,
    Code,
    Column,
    Figures,
    Issue,
    Kind,
    Link,
    Notes,
    Pairs,
    Plot,
    Section,
    Table,
    Text,
)
from penstock.view.draw.pictures import SERIES
from penstock.view.draw.words import count, counted, found, human_bytes, share, short
from penstock.view.facts.batches import BatchComparison, BatchFacts
from penstock.view.facts.bounds import Figure
from penstock.view.facts.comparing import Comparison
from penstock.view.facts.dataset import Overview, TokenFacts
from penstock.view.facts.disk import Disk, Shards
from penstock.view.facts.findings import Health
from penstock.view.facts.lengths import Lengths
from penstock.view.facts.run import Curves, Node, Plan

_QUANTILES = {0.0: "min", 0.5: "median", 1.0: "max"}


# --- datasets ----------------------------------------------------------------------------------------------------


def overview(one: Overview, base: str | None = None, query: str = "") -> list[Section]:
    """Return the overview of a dataset.

    Args:
        one: facts of the dataset.
        base: address of its pages; None without pages.
        query: query of these addresses.
    """

    def csv(name: str) -> str | None:
        return None if base is None else f"{base}{name}.csv{query}"

    to_do = [text for text in one.unknown if "`" in text]  # only what a command can determine
    unknown = Notes(to_do, "unknown", _by_position(one, base, query)) if to_do else None
    return [
        Section(None, [figures(one), unknown]),
        *([] if one.lengths is None else [lengths(one, one.lengths, csv("lengths"))]),
        *([] if one.shards is None else [_shards(one.shards, csv("shards"))]),
        *([] if one.disk is None or not one.disk.files else [_files(one.disk)]),
        schema(one),
        *([] if one.tokens is None else [_tokens(one.tokens)]),
        *([] if not one.splits else [_splits(one, has_links=base is not None)]),
        _identity(one),
    ]


def _by_position(one: Overview, base: str | None, query: str) -> Link | None:
    is_lines = one.samples.value is None and one.format.startswith("jsonl")
    return Link("Browse samples by byte position", f"{base}samples{query}") if base is not None and is_lines else None


def figures(one: Overview) -> Figures:
    made = [_amount("samples" if one.tokens is None else "documents", one.samples)]
    if one.tokens is not None:
        made.append(_amount("tokens", one.tokens.count, "short"))
    if one.disk is not None:
        name = "size of all splits" if len(one.splits) > 1 and one.format == "webdataset" else "size"
        made.append(_amount(name, one.disk.size_bytes, "bytes"))
        made.append(Amount("files", "many" if one.disk.of is None else one.disk.of))
    if one.tokens is not None and one.samples.value and one.tokens.count.value is not None:
        made.append(Amount("tokens per document", round(one.tokens.count.value / one.samples.value), how="mean"))
    if one.excluded:
        made.append(Amount("excluded", one.excluded, how=f"by {one.exclude_list}"))
    return Figures(made)


def _amount(label: str, figure: Figure, kind: Any = "count") -> Amount:
    how = f"unknown: {figure.how}" if figure.value is None else found(figure) if figure.is_estimate else ""
    return Amount(label, figure.value, kind, how, f"from: {figure.how}", figure.is_estimate)


def lengths(one: Overview, of: Lengths, csv: str | None = None) -> Section:
    """Return the histogram of lengths with percentiles."""
    unit: Kind = "bytes" if of.unit == "bytes" else "count"
    columns = [Column("from"), Column("to"), Column("samples", "count"), Column("cumulative", "share", is_drawn=False)]
    so_far = list(accumulate(each.count for each in of.bins))
    rows = [(each.start, each.stop, each.count, sum_ / so_far[-1]) for each, sum_ in zip(of.bins, so_far, strict=True)]
    plot = Plot("bars", "Lengths", "samples", Table(columns, rows), csv=csv)
    named = [("mean", round(of.mean)), *((_QUANTILES.get(at, f"{at * 100:g}%"), value) for at, value in of.quantiles)]
    quantiles = Figures([Amount(name, value, unit) for name, value in named])
    how = f"from the {of.how}" if of.estimated_from is None else (
        f"estimated from {count(of.estimated_from)} of {short(of.of)}, evenly spaced"
    )  # fmt: skip
    per = "sample" if one.tokens is None else "document"
    return Section("Lengths", [Text(f"{how}; each bar starts at its label"), plot, quantiles], f"{of.unit} per {per}")


def _shards(of: Shards, csv: str | None) -> Section:
    columns = [Column("shard"), Column("to"), Column("min", "count"), Column("max", "count")]
    rows = [(each.first, each.last, each.fewest, each.most) for each in of.bars]
    few, most = count(of.fewest), count(of.most)
    note = f"{most} in each" if few == most else f"{few} to {most}, median {count(of.median)}"
    odd = [f"shard {count(number)} has {counted(samples, 'sample')}" for number, samples in of.odd]
    odd += [f"{of.num_odd - len(odd):,} more"] if of.num_odd > len(odd) else []
    outliers = Notes([f"Outliers: {'; '.join(odd)}"]) if odd else None
    plot = Plot("shards", "Samples per shard", "samples", Table(columns, rows), odd=[number for number, _ in of.odd],
                csv=csv, note=note)  # fmt: skip
    return Section("Shards", [plot, outliers], f"{count(of.count)}, samples per shard")


def _files(disk: Disk) -> Section:
    rows = [(each.name, each.size_bytes, each.size_bytes) for each in disk.files]
    more = None if disk.of is None else disk.of - len(rows)
    total_bytes = max(disk.size_bytes.value or 0, sum(each.size_bytes for each in disk.files))
    table = Table([Column("", "name"), Column("", "bytes"), Column("", "meter", total_bytes)], rows, more, fold=True)
    about = f"the first {counted(len(rows), 'file')}" if disk.of is None else counted(disk.of, "file")
    return Section("On disk", [table], about)


def schema(one: Overview) -> Section:
    rows = [(field.name, field.kind, _dtype(field)) for field in one.fields]
    table = Table([Column("", "name"), Column(""), Column("", "quiet")], rows) if rows else None
    more = Text("samples may have more fields" if rows else "fields vary by sample") if one.is_open else None
    return Section("Fields", [table, more], is_aside=True)


def _dtype(field: Field) -> str:
    shape = ", ".join("·" if one is None else count(one) for one in field.shape or ())
    return f"{field.dtype or ''}{f' [{shape}]' if shape else ''}"


def _tokens(tokens: TokenFacts) -> Section:
    digest = f" {tokens.tokenizer_digest[:12]}" if tokens.tokenizer_digest else ""
    rows: list[tuple[str, Any]] = [
        ("width", f"{counted(tokens.token_bytes, 'byte')} per id"),
        ("largest id", "not recorded" if tokens.max_token_id is None else tokens.max_token_id),
        ("documents", tokens.eos_rule),
        ("tokenizer", f"{tokens.tokenizer or 'not recorded'}{digest}"),
    ]
    return Section("Tokens", [Pairs(rows)], is_aside=True)


def _splits(one: Overview, *, has_links: bool) -> Section:
    rows = [
        (Link(each.name, f"?split={quote(each.name, safe='')}" if has_links else None), each.samples,
         "shown here" if each.is_open else "")
        for each in one.splits
    ]  # fmt: skip
    return Section(
        "Splits", [Table([Column("", "name"), Column("", "count"), Column("", "quiet")], rows)], is_aside=True
    )


def _identity(one: Overview) -> Section:
    manifest, fingerprint = one.manifest, one.fingerprint
    side_file = "none: silent corruption can't be detected" if manifest is None else manifest.tool or "yes"
    rows: list[tuple[str, Any]] = [
        ("fingerprint", Code(fingerprint.value) if fingerprint.value else fingerprint.how),
        ("side file", side_file),
    ]
    rows += [("digest", Code(manifest.digest))] if manifest is not None and manifest.digest else []
    rows += [(name.replace("_", " "), _detail(name, value)) for name, value in one.details.items()]
    return Section("Identity", [Pairs(rows)], is_aside=True)


def _detail(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{one}: {text}" for one, text in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, int):
        return human_bytes(value) if name.endswith("_bytes") else count(value)
    return str(value)


def terminal(lines: Sequence[str]) -> Section:
    return Section("In a terminal", [Code(line) for line in lines], is_aside=True)


def health(one: Health, place: str = "") -> list[Block]:
    """Return the findings of a check; `place` is where and when it was made."""
    if one.is_sound:
        return [Notes([f"No findings{place}."], "good")]
    columns = [Column("file", "name"), Column("byte", "count"), Column("found"), Column("expected")]
    issues = [
        Issue(kind.severity, kind.code, kind.count, kind.fix,
              Table(columns, [(spot.path, "" if spot.offset_bytes is None else spot.offset_bytes, spot.found,
                               spot.expected) for spot in kind.places], kind.count - len(kind.places)))
        for kind in one.kinds
    ]  # fmt: skip
    more = one.of - len(issues)
    return [*issues, *([Text(f"{count(more)} more kinds of findings")] if more > 0 else [])]


def side_by_side(names: Sequence[str], sides: Sequence[tuple[Overview | None, Any]]) -> Section:
    """Return facts of datasets in columns; a side is an overview, or None and the error."""
    columns = [Column(""), *(Column(f"{letter}: {name}") for letter, name in zip("AB", names, strict=False))]
    rows = [
        (label, *(("can't be opened: " + fault.what if label == "format" else "") if one is None else _fact(label, one)
                  for one, fault in sides))
        for label in ("format", "samples", "tokens", "size", "fields", "fingerprint", "digest")
    ]  # fmt: skip
    return Section("Comparison", [Table(columns, rows)])


def _fact(label: str, one: Overview) -> Any:
    if label == "fields":
        fields = ", ".join(f"{field.name} ({field.kind})" for field in one.fields)
        return fields + (" …" if one.is_open else "")
    value = {
        "format": one.format,
        "samples": count(one.samples.value),
        "tokens": None if one.tokens is None else count(one.tokens.count.value),
        "size": None if one.disk is None else human_bytes(one.disk.size_bytes.value),
        "fingerprint": one.fingerprint.value,
        "digest": None if one.manifest is None else one.manifest.digest,
    }[label]
    return Code(value) if value and label in ("fingerprint", "digest") else value or "–"


def comparison(one: Comparison) -> list[Block]:
    """Return the result of a comparison of samples."""
    if one.equal:
        return [Notes([f"The same {counted(one.num_a, 'sample')}, by {one.by}."], "good")]
    if one.num_reordered:
        differ = f"{count(one.num_reordered)} of {count(one.num_a)} positions differ"
        return [Notes([f"The same samples in a different order: {differ}."])]
    pairs = (("A", one.only_in_a, one.num_a), ("B", one.only_in_b, one.num_b))
    return [Figures([Amount(f"only in {name}", only, how=f"of {count(of)}") for name, only, of in pairs])]


def differences(one: Comparison, bases: tuple[str, str]) -> list[Section]:
    """Return the first differing samples; `bases` are the addresses of both datasets."""
    made: list[Section] = []
    for each in one.differences:
        sides = ((each.index_a, each.key_a, bases[0]), (each.index_b, each.key_b, bases[1]))
        titles = [
            f"not in {name}" if index is None else f"{name} {count(index)} {key or ''}".strip()
            for name, (index, key, _) in zip("AB", sides, strict=True)
        ]
        columns = [Column(""), Column("A"), Column("B")]
        rows = [(name, "–" if a is None else a, "–" if b is None else b) for name, a, b in each.rows]
        links = [Link("open", f"{base}sample/{index}") if index is not None else "" for index, _, base in sides]
        made.append(Section(" · ".join(titles), [Table(columns, [*rows, ("", *links)])]))
    return made


# --- runs --------------------------------------------------------------------------------------------------------


def plan_figures(one: Plan, *, requested: bool = False) -> Figures:
    made = [
        Amount("samples", one.samples, "short", "requested" if requested else "until every source has been read once")
    ]
    each = f"{count(one.global_batch)} samples each" if one.global_batch else "enter a batch size to see steps"
    made.append(Amount("steps", one.steps, how=each))
    made += [Amount("tokens", one.tokens, "short", "without padding")] if one.tokens is not None else []
    is_estimate, how = bool(one.estimated), one.estimated or "of all samples"
    made += [Amount("padding", one.padding, "share", how, is_estimate=is_estimate)] if one.padding is not None else []
    if one.size_bytes is not None:
        how = f"{short(one.requests)} requests{f', {one.estimated}' if one.estimated else ''}"
        made.append(Amount("bytes", one.size_bytes, "bytes", how, is_estimate=is_estimate))
    return Figures(made)


def plan(one: Plan, *, requested: bool = False) -> Section:
    """Return the totals and the warnings of a plan."""
    return Section(None, [plan_figures(one, requested=requested), Notes(one.warnings) if one.warnings else None])


def plan_sources(one: Plan) -> Section | None:
    """Return the planned reads from each source."""
    names: dict[str, Kind] = {
        "samples": "count", "reads": "count", "epochs": "factor", "repeats": "count", "share": "share",
        "tokens": "short", "padding": "share", "bytes": "bytes", "requests": "count",
    }  # fmt: skip
    columns = [Column("source", "name"), *(Column(name, kind) for name, kind in names.items())]
    rows = [
        (f"{each.path} (remote)" if each.is_remote else each.path, each.samples, each.reads, each.epochs, each.repeats,
         each.share, each.tokens, each.padding, each.size_bytes, each.requests)
        for each in one.sources
    ]  # fmt: skip
    return Section("Sources", [Table(columns, rows)]) if rows else None


def mix(node: Node) -> Section:
    """Return the tree of a mix with requested and exact shares."""
    rows: list[tuple[int, tuple[Any, ...]]] = []

    def add(one: Node, depth: int) -> None:
        until = "" if one.until is None else f"until sample {count(one.until)}"
        about = one.about.partition(" ")[2]
        kind = f"{one.kind} {about}" if about else one.kind
        asked = "" if one.asked is None else share(one.asked)
        exact = "" if one.share is None else share(one.share)
        rows.append((depth, (one.name or "the run", kind, asked, exact, one.share, count(one.samples)
                             if one.samples is not None else "", until)))  # fmt: skip
        for child in one.children:
            add(child, depth + 1)
        if one.of > len(one.children):
            rows.append((depth + 1, (f"… {count(one.of - len(one.children))} more", "", "", "", None, "", "")))

    add(node, 0)
    columns = [
        Column("source", "name"), Column("kind", "quiet"), Column("requested", "share"), Column("actual", "share"),
        Column("", "meter", 1), Column("samples", "count"), Column("", "quiet"),
    ]  # fmt: skip
    return Section("Mix", [Table(columns, [row for _, row in rows], depths=[depth for depth, _ in rows])])


def over_steps(one: Curves, csv: str | None = None) -> list[Section]:
    """Return the shares, epochs and tokens of each source over the steps of a run."""
    if len(one.steps) < 2:
        return []
    about = f"over {count(one.steps[-1])} steps of {count(one.global_batch)}"
    made: list[Section] = []
    kinds: tuple[tuple[str, str, Kind], ...] = (
        ("Share of the samples", "share", "share"), ("Epochs", "epochs", "factor"), ("Tokens", "tokens", "short"),
    )  # fmt: skip
    for title, unit, kind in kinds:
        known = [(curve.path, {"share": curve.share, "epochs": curve.epochs, "tokens": curve.tokens}[unit])
                 for curve in one.curves]  # fmt: skip
        shown = [(path, values) for path, values in known if values is not None][:SERIES]
        if not shown:
            continue
        columns = [Column("step", "count"), *(Column(path, kind) for path, _ in shown)]
        rows = [(step, *(values[at] for _, values in shown)) for at, step in enumerate(one.steps)]
        note = f"{len(shown)} of {count(one.of)} sources" if one.of > len(shown) else ""
        plot = Plot("areas" if unit == "share" else "lines", title, unit, Table(columns, rows), one.marks, csv=csv,
                    note=note)  # fmt: skip
        made.append(Section(title, [plot], about))
    return made


def batch(one: BatchFacts) -> list[Section]:
    """Return the sources and fields of a batch."""
    shares = Table(
        [Column("source", "name"), Column("samples", "count"), Column("share", "share"), Column("", "meter", one.of)],
        [(name, number, number / one.of, number) for name, number in one.shares],
    )
    fields = [
        (each.name, each.dtype or each.kind, ", ".join("·" if side is None else count(side) for side in each.shape))
        for each in one.fields
    ]
    table = Table([Column("field", "name"), Column("dtype"), Column("shape", "quiet")], fields)
    known = table if fields else Text("unknown until the run reads it")
    return [Section("Samples per source", [shares]), Section("Model input", [known], is_aside=True)]


def two_batches(one: BatchComparison, steps: tuple[int, int]) -> list[Section]:
    """Return how two batches differ."""
    names = [f"step {count(step)}" for step in steps]
    amounts = [Amount("in both", one.common), Amount(f"only in {names[0]}", one.only_in_a),
               Amount(f"only in {names[1]}", one.only_in_b)]  # fmt: skip
    columns = [Column("source", "name"), Column(names[0], "count"), Column("", "meter", one.a.of or 1),
               Column(names[1], "count"), Column("", "meter", one.b.of or 1)]  # fmt: skip
    rows = [(name, a, a, b, b) for name, a, b in one.rows]
    return [Section(None, [Figures(amounts)]), Section("Samples per source", [Table(columns, rows)])]
