"""`penstock info PATH`."""

from __future__ import annotations

from typing import Any

import click

from penstock._printable import printable, shortened_part
from penstock.cli._opening import dataset_argument, excludes_option, opening_options
from penstock.cli._output import counted, emit, follow_links_option, human_bytes, json_option, table

_BAR = 40
_MOST_SHOWN = 40
"""Parts, fields or columns that are named in the text for people; JSON has them all."""


@click.command()
@dataset_argument("path")
@opening_options("the dataset")
@excludes_option
@follow_links_option
@json_option
def command(path: str, as_json: bool, **options: Any) -> None:
    """Show the format, counts, sizes, schema and document lengths of a dataset."""
    from penstock import verbs

    found = verbs.info(path, **options)
    emit(found, as_json=as_json, text=lambda: _text(found))


def _text(found: dict[str, Any]) -> str:
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
    width = max(len(label) for label, _ in rows)
    lines = [printable(shortened_part(found["path"])), *(f"  {label.ljust(width)}  {value}" for label, value in rows)]
    if found.get("parts"):
        lines += ["", *_of_parts(found["parts"])]
    if found.get("lengths"):
        lines += ["", "  document lengths in tokens", *_lengths(found["lengths"])]
    if found.get("sample_lengths"):
        lines += ["", *_sample_lengths(found["sample_lengths"])]
    return "\n".join(lines)


def _of_parts(parts: dict[str, Any]) -> list[str]:
    """Each part: how many samples have it, how large it is, and what of the contents it is."""
    rows = [
        (one["name"], f"{one['share']:.1%}", human_bytes(one["mean_bytes"]), f"{one['share_of_bytes']:.1%}")
        for one in parts["parts"][:_MOST_SHOWN]
    ]
    from penstock.view.facts.samples import MOST_KINDS

    looked_at = parts["estimated_from"]
    how = f"from {looked_at:,} of {parts['of']:,} samples" if looked_at else f"of all {parts['of']:,} samples"
    head = table(rows, header=("part", "samples", "mean size", "of all bytes")).splitlines()
    more = len(parts["parts"]) - len(rows)
    cut = [f"  and {'at least ' if len(parts['parts']) >= MOST_KINDS else ''}{more:,} more parts"] if more else []
    return [f"  parts, {how}", *(f"  {line}" for line in head), *cut]


def _sample_lengths(found: dict[str, Any]) -> list[str]:
    """Lengths of samples in bytes, with how they were found."""
    looked_at = found["estimated_from"]
    how = f"from {looked_at:,} of {found['of']:,} samples" if looked_at else f"of all {found['of']:,} samples"
    quantiles = {f"{share:g}": value for share, value in found["quantiles"]}
    bins = [(one["start"], one["stop"], one["count"]) for one in found["bins"]]
    title = f"  sample lengths in stored bytes, {how}, from the {found['how']}"
    return [title, *_lengths({"quantiles": quantiles, "mean": found["mean"], "histogram": bins})]


def _unknown_text(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows of the text that the tokenizer didn't know, as `pack` recorded it."""
    counts = (found["manifest"] or {}).get("unknown_text") or {}
    unknown, dropped = counts.get("unknown_tokens"), counts.get("dropped_characters")
    share = f" ({unknown / found['tokens']:.2%} of all)" if unknown and found["tokens"] else ""
    rows = [("unknown text", f"{counted(unknown, 'token')}{share}")] if unknown else []
    return [*rows, ("dropped text", f"{counted(dropped, 'character')} with no token")] if dropped else rows


def _few(words: list[str], more: int = 0) -> str:
    """The first of many, and how many others there are."""
    more += max(0, len(words) - _MOST_SHOWN)
    return ", ".join(words[:_MOST_SHOWN]) + (f" and {more:,} more" if more else "")


def _details(details: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows of a format's further details."""
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


def _lengths(lengths: dict[str, Any]) -> list[str]:
    """Quantiles and a histogram of document lengths."""
    named = {"0": "shortest", "0.5": "median", "1": "longest"}
    quantiles = [(named.get(q, f"{float(q):.0%}"), f"{value:,}") for q, value in lengths["quantiles"].items()]
    lines = ["  " + "  ".join(f"{label} {value}" for label, value in quantiles)]
    lines.append(f"  mean {lengths['mean']:,.1f}")
    most = max(count for _, _, count in lengths["histogram"])
    bars = [
        (f"{low:,}" if low == high else f"{low:,} to {high:,}", f"{count:,}", "#" * -(-count * _BAR // most))
        for low, high, count in lengths["histogram"]
    ]
    return [*lines, "", *("  " + line for line in table(bars).splitlines())]
