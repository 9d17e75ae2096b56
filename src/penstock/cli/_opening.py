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
    text = f"Exclude list of {whose}, or none to read all samples."
    default = "the list next to the dataset, if local"
    return click.option(name, metavar="FILE|none", callback=no_list, help=text, show_default=default)


excludes_option = excludes_option_of("--excludes", "the dataset")

planes_option = click.option(
    "--planes",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="Read planes such as loss masks (auto), or only the tokens (none).",
)


flavor_option = click.option(
    "--flavor",
    type=click.Choice(["modalities", "energon"]),
    show_default="modalities",
    help="Index rules of JSONL files.",
)


eos_id_option = click.option(
    "--eos-id", metavar="ID", type=int, help="ID of the token that ends each document, if the data doesn't record it."
)


layout_option = click.option(
    "--layout",
    metavar="NAME",
    help="Layout of the data, if ambiguous: an older layout, or the width of raw tokens, such as uint16.",
)


def opening_options(whose: str) -> Callable[[Command], Command]:
    """Add `--format --split --layout --eos-id --planes` of a dataset.

    Args:
        whose: name of the dataset in help, such as "the source".
    """

    def add(command: Command) -> Command:

        for option in (
            planes_option,
            eos_id_option,
            layout_option,
            click.option("--split", metavar="NAME", help=f"Split of {whose}, for formats with splits."),
            click.option("--format", metavar="NAME", show_default="detected", help=f"Format of {whose}."),
        ):
            command = option(command)
        return command

    return add
