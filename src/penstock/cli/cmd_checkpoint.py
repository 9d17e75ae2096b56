"""`penstock energon checkpoint`."""

from __future__ import annotations

import click

from penstock.cli._output import emit, json_option


@click.group(invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Convert states saved by penstock.compat.energon to another number of ranks."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@command.command()
@click.argument("input_files", nargs=-1, required=True)
@click.argument("output_path")
@click.option("--new-world-size", type=click.IntRange(1), help="Number of ranks of the resumed run.")
@json_option
def redist(input_files: tuple[str, ...], output_path: str, new_world_size: int | None, as_json: bool) -> None:
    """Merge the states of all ranks, and write one state to OUTPUT_PATH for each rank of the resumed run."""
    from penstock.compat.energon.redistributed import redistribute
    from penstock.store.place import place_of

    if new_world_size is None:
        new_world_size = click.prompt("Please enter the new DP world size", type=click.IntRange(1), err=as_json)
    names = redistribute([place_of(file) for file in input_files], place_of(output_path), new_world_size)
    text = f"Processing {len(input_files)} checkpoint files\nSaved {len(names)} rank checkpoint files to {output_path}"
    emit({"output": output_path, "files": names}, as_json=as_json, text=text)
