"""`penstock repair PATH`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._output import counted, emit, follow_links_option, json_option


@click.command()
@click.argument("path")
@click.option("--write", is_flag=True, help="Make the changes; a backup of each changed file is kept next to it.")
@click.option(
    "--depth",
    type=click.Choice(["quick", "sample", "full"]),
    default="quick",
    show_default=True,
    help="How thoroughly to look for damage, as in `penstock verify`; full reads every byte.",
)
@click.option("--format", "format_name", metavar="NAME", show_default="detected", help="Format of the dataset.")
@click.option("--layout", metavar="NAME", help="Layout of the data, if ambiguous.")
@click.option(
    "--eos-id", metavar="ID", type=int, help="ID of the token that ends each document, to rebuild a lost index."
)
@follow_links_option
@json_option
def command(path: str, write: bool, depth: Any, format_name: str | None, as_json: bool, **options: Any) -> int:
    """Repair known damage.

    Lists the changes; --write makes them. Exits with 1 if errors remain.
    """
    import msgspec

    from penstock.check import repair, verify
    from penstock.cli.cmd_verify import describe_findings

    how: dict[str, Any] = {"depth": depth, "format": format_name, **options}
    actions = repair(path, write=write, **how)
    left = []
    if write or not any(one.possible for one in actions):  # the remaining errors can't be repaired
        left = [one for one in verify(path, **how) if one.severity == "error"]

    def text() -> str:
        verb = "done" if write else "would do"
        lines = [f"{verb if one.possible else 'impossible'}: {one.path}: {one.what}" for one in actions]
        if left:
            remaining = f"{path}: {counted(len(left), 'error')} can't be repaired"
            return "\n".join([*lines, *describe_findings(left), remaining])
        more = "" if depth == "full" else "; --depth full reads every byte"
        if not actions:
            return f"{path}: nothing to repair at depth {depth}{more}"
        last = (
            f"{path}: no errors left at depth {depth}{more}" if write else "Run again with --write to make the changes."
        )
        return "\n".join([*lines, last])

    data = {"path": path, "depth": depth, "written": write, "actions": [msgspec.to_builtins(one) for one in actions]}
    emit(data | {"left": [msgspec.to_builtins(one) for one in left]}, as_json=as_json, text=text)
    return 1 if left else 0
