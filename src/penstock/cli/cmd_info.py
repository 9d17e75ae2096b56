"""`penstock info PATH`."""

from __future__ import annotations

from typing import Any

import click

from penstock._printable import shortened_part
from penstock.cli._opening import dataset_argument, excludes_option, opening_options
from penstock.cli._output import counted, emit, follow_links_option, human_bytes, json_option, table

_BAR = 40


@click.command()
@dataset_argument("path")
@opening_options("the dataset")
@excludes_option
@follow_links_option
@json_option
def command(path: str, as_json: bool, **options: Any) -> None:
    """What a dataset is: counts, sizes, schema, lengths of documents, and what its side file says."""
    from penstock.check import summarise

    found = summarise(path, **options)
    if found["format"] == "webdataset":
        found |= _parts(path, found["samples"], options)
    emit(found, as_json=as_json, text=lambda: _text(found))


def _parts(path: str, samples: int, options: dict[str, Any]) -> dict[str, Any]:
    """The parts of samples, by the headers of some of them."""
    import msgspec

    from penstock._keywords import were_given
    from penstock.view.facts.opening import open_target
    from penstock.view.facts.parts import parts_of_samples

    opened = open_target(path, **were_given(options))
    parts = parts_of_samples(opened, samples)
    return {} if parts is None else {"parts": msgspec.to_builtins(parts)}


def _text(found: dict[str, Any]) -> str:
    rows = [("format", found["format"]), ("size", human_bytes(found["size_bytes"]))]
    is_tokens = "tokens" in found
    samples = "not marked in the data" if found["samples"] is None else f"{found['samples']:,}"
    rows += [("documents" if is_tokens else "samples", samples)]
    if "excluded" in found:
        rows += [("excluded", f"{found['excluded']:,}, by {found['exclude_list']}")]
    if is_tokens:
        largest = found["max_token_id"]
        recorded = "not recorded" if largest is None else f"{largest:,}"
        rows += [("tokens", f"{found['tokens']:,}"), ("token width", f"{found['token_bytes']} bytes")]
        rows += [("largest id", recorded), ("EOS", found["eos_rule"])]
    rows += _details(found.get("details", {}))
    if "columns" not in found.get("details", {}):
        fields = ", ".join(f"{field['name']} ({field['kind']})" for field in found["schema"])
        first = found.get("first_samples", {"samples": 0})
        if first["samples"]:
            fields = ", ".join(f"{name} ({share:.0%})" for name, share in first["fields"].items())
            fields += f" of the first {first['samples']:,}"
        rows += [("fields", fields or "as each line")]
    rows += [("fingerprint", found["fingerprint"])]
    for name in ("tokenizer", "digest", "tool"):
        value = (found["manifest"] or {}).get(name)
        if value is not None:
            rows.append((name, str(value)))
    width = max(len(label) for label, _ in rows)
    lines = [shortened_part(found["path"]), *(f"  {label.ljust(width)}  {value}" for label, value in rows)]
    if found.get("parts"):
        lines += ["", *_of_parts(found["parts"])]
    if found.get("lengths"):
        lines += ["", *_lengths(found["lengths"])]
    return "\n".join(lines)


def _of_parts(parts: dict[str, Any]) -> list[str]:
    """Each part: how many samples have it, how large it is, and what of the contents it is."""
    rows = [
        (one["name"], f"{one['share']:.1%}", human_bytes(one["mean_bytes"]), f"{one['share_of_bytes']:.1%}")
        for one in parts["parts"]
    ]
    looked_at = parts["estimated_from"]
    how = f"from {looked_at:,} of {parts['of']:,} samples" if looked_at else f"of all {parts['of']:,} samples"
    head = table(rows, header=("part", "in samples", "mean size", "of contents")).splitlines()
    return [f"  parts, {how}", *(f"  {line}" for line in head)]


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
            rows.append((name.replace("_", " "), ", ".join(f"{one} ({text})" for one, text in value.items())))
        else:
            rows.append((name.replace("_", " "), ", ".join(value) or "none"))
    return rows


def _lengths(lengths: dict[str, Any]) -> list[str]:
    """Quantiles and a histogram of document lengths."""
    named = {"0": "shortest", "0.5": "median", "1": "longest"}
    quantiles = [(named.get(q, f"{float(q):.0%}"), f"{value:,}") for q, value in lengths["quantiles"].items()]
    lines = ["  document lengths in tokens", "  " + "  ".join(f"{label} {value}" for label, value in quantiles)]
    lines.append(f"  mean {lengths['mean']:,.1f}")
    most = max(count for _, _, count in lengths["histogram"])
    bars = [
        (f"{low:,}" if low == high else f"{low:,} to {high:,}", f"{count:,}", "#" * -(-count * _BAR // most))
        for low, high, count in lengths["histogram"]
    ]
    return [*lines, "", *("  " + line for line in table(bars).splitlines())]
