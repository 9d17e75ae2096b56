"""The options by which a dataset is opened, the same for all commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def dataset_argument(name: str) -> Callable[[Command], Command]:
    """The dataset that is read; several files, folders and patterns are one, and the command gets one path for them."""

    def one_path(context: click.Context, param: click.Parameter, given: tuple[str, ...]) -> str | None:
        from penstock.store.patterns import pattern_of

        return pattern_of(given) if given else None  # while a shell completes, nothing may be given yet

    return click.argument(name, nargs=-1, required=True, metavar=f"{name.upper()}...", callback=one_path)


excludes_option = click.option("--excludes", help="Exclude list; by default that beside the data, on this machine.")


flavor_option = click.option(
    "--flavor",
    type=click.Choice(["modalities", "energon"]),
    help="Whose rules hold for a JSONL; modalities by default.",
)


def opening_options(whose: str) -> Callable[[Command], Command]:
    """`--format --split --layout --eos-id` of a dataset; what its format can't follow is refused.

    Args:
        whose: what the help calls it, such as "the source".
    """

    def add(command: Command) -> Command:
        layout = f"Historical layout of {whose}, where it is ambiguous; the width of raw tokens, such as uint16."
        for option in (
            click.option("--eos-id", type=int, help="Id that ends each document, where the data do not say."),
            click.option("--layout", help=layout),
            click.option("--split", help=f"Split of {whose}, for formats that have splits."),
            click.option("--format", help=f"Format of {whose}, instead of finding it out."),
        ):
            command = option(command)
        return command

    return add
