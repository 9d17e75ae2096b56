"""`penstock repair PATH`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._output import emit, follow_links_option, json_option


@click.command()
@click.argument("path")
@click.option("--write", is_flag=True, help="Make the changes; a backup stays beside the original.")
@click.option("--format", "format_name", help="Format name, instead of finding it out.")
@click.option("--layout", help="Historical layout, where it is ambiguous.")
@click.option("--eos-id", type=int, help="Id that ends each document; lets a lost index be rebuilt.")
@follow_links_option
@json_option
def command(path: str, write: bool, format_name: str | None, as_json: bool, **options: Any) -> None:
    """Mend known damage. Without --write it only lists what it would do."""
    import msgspec

    from penstock.check import repair

    actions = repair(path, write=write, format=format_name, **options)

    def text() -> str:
        if not actions:
            return f"{path}: nothing to mend"
        lines = [f"{'done' if one.done else 'would do'}: {one.path}: {one.what}" for one in actions]
        return "\n".join(lines if write else [*lines, "Run again with --write to do it."])

    data = {"path": path, "written": write, "actions": [msgspec.to_builtins(one) for one in actions]}
    emit(data, as_json=as_json, text=text)
