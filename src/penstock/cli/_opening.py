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


def no_list(context: click.Context, param: click.Parameter, given: str | None) -> Any:
    """Return False for `--excludes none`: the data is read without its exclude list."""
    return False if given == "none" else given


def excludes_option_of(name: str, whose: str) -> Callable[[Command], Command]:
    """Return the option that names the exclude list of a dataset."""
    text = f"Exclude list of {whose}, or none to read all samples; by default the list next to it, on this machine."
    return click.option(name, metavar="FILE|none", callback=no_list, help=text)


excludes_option = excludes_option_of("--excludes", "the dataset")

planes_option = click.option(
    "--planes",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="Read the planes of tokens, such as loss masks, or only the tokens.",
)


flavor_option = click.option(
    "--flavor",
    type=click.Choice(["modalities", "energon"]),
    help="Whose rules hold for a JSONL; modalities by default.",
)


def opening_options(whose: str) -> Callable[[Command], Command]:
    """`--format --split --layout --eos-id --planes` of a dataset; what its format can't follow is refused.

    Args:
        whose: what the help calls it, such as "the source".
    """

    def add(command: Command) -> Command:
        layout = f"Historical layout of {whose}, where it is ambiguous; the width of raw tokens, such as uint16."
        for option in (
            planes_option,
            click.option("--eos-id", type=int, help="Id that ends each document, where the data do not say."),
            click.option("--layout", help=layout),
            click.option("--split", help=f"Split of {whose}, for formats that have splits."),
            click.option("--format", help=f"Format of {whose}, instead of finding it out."),
        ):
            command = option(command)
        return command

    return add
