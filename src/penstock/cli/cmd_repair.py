"""`penstock repair PATH`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._output import emit, follow_links_option, json_option


@click.command()
@click.argument("path")
@click.option("--write", is_flag=True, help="Make the changes; a backup stays beside the original.")
@click.option(
    "--depth",
    type=click.Choice(["quick", "sample", "full"]),
    default="quick",
    show_default=True,
    help="How far it looks for damage, as `verify` does: full reads every byte.",
)
@click.option("--format", "format_name", help="Format name, instead of finding it out.")
@click.option("--layout", help="Historical layout, where it is ambiguous.")
@click.option("--eos-id", type=int, help="Id that ends each document; lets a lost index be rebuilt.")
@follow_links_option
@json_option
def command(path: str, write: bool, depth: Any, format_name: str | None, as_json: bool, **options: Any) -> int:
    """Repair known damage. Without --write it only lists what it would do. Exits with 1 if errors remain."""
    import msgspec

    from penstock.check import repair, verify
    from penstock.cli.cmd_verify import describe_findings

    how: dict[str, Any] = {"depth": depth, "format": format_name, **options}
    actions = repair(path, write=write, **how)
    left = []
    if write or not any(one.possible for one in actions):  # what stays wrong: nothing can be done for it
        left = [one for one in verify(path, **how) if one.severity == "error"]

    def text() -> str:
        verb = "done" if write else "would do"
        lines = [f"{verb if one.possible else 'impossible'}: {one.path}: {one.what}" for one in actions]
        if left:
            return "\n".join([*lines, *describe_findings(left), f"{path}: {len(left)} errors can't be mended here"])
        more = "" if depth == "full" else "; --depth full reads every byte"
        if not actions:
            return f"{path}: nothing to mend at depth {depth}{more}"
        told = f"{path}: no error is left at depth {depth}{more}" if write else "Run again with --write to do it."
        return "\n".join([*lines, told])

    data = {"path": path, "depth": depth, "written": write, "actions": [msgspec.to_builtins(one) for one in actions]}
    emit(data | {"left": [msgspec.to_builtins(one) for one in left]}, as_json=as_json, text=text)
    return 1 if left else 0
