"""`penstock info PATH`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._output import emit, human_bytes, json_option, table


@click.command()
@click.argument("path")
@click.option("--format", "format_name", help="Format name, instead of finding it out.")
@click.option("--layout", help="Historical layout, where it is ambiguous.")
@json_option
def command(path: str, format_name: str | None, as_json: bool, **options: Any) -> None:
    """What a dataset is: counts, sizes, schema, and what its side file says."""
    from penstock.check import summarise

    found = summarise(path, format=format_name, **options)
    emit(found, as_json=as_json, text=lambda: _text(found))


def _text(found: dict[str, Any]) -> str:
    rows = [
        ("format", found["format"]),
        ("size", human_bytes(found["size_bytes"])),
        ("samples", f"{found['samples']:,}"),
    ]
    if "tokens" in found:
        rows += [("tokens", f"{found['tokens']:,}"), ("token width", f"{found['token_bytes']} bytes")]
        rows += [("EOS id", "unknown" if found["eos_id"] is None else str(found["eos_id"]))]
    rows += [("fields", ", ".join(f"{field['name']} ({field['kind']})" for field in found["schema"]) or "as each line")]
    rows += [("fingerprint", found["fingerprint"])]
    for name in ("max_token_id", "tokenizer", "digest", "tool"):
        value = (found["manifest"] or {}).get(name)
        if value is not None:
            rows.append((name.replace("_", " "), str(value)))
    return f"{found['path']}\n" + table([(f"  {label}", f" {value}") for label, value in rows])
