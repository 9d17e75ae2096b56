"""Which samples a command shows, and their texts: the options that `head` and `explain --show` share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli._energon import refuse_given
from penstock.cli._hints import with_options
from penstock.cli._output import note

if TYPE_CHECKING:
    from penstock.look.head import Decode
    from penstock.view.facts.panel import Panels

_JSON_TOKENS = 4096

Command = TypeVar("Command", bound=Callable[..., Any])


tokenizer_option = click.option(
    "--tokenizer",
    metavar="NAME",
    help="Show token IDs as text: a tokenizer.json, its directory, or a name in the Hub's local cache.",
)


def sample_options(command: Command) -> Command:
    """`--start --index --key --tokenizer --all`."""

    for option in (
        click.option("--all", "show_all", is_flag=True, help="Also show fields that start with __."),
        tokenizer_option,
        click.option("--key", metavar="KEY", help="Show the sample with this key."),
        click.option("--index", type=click.IntRange(min=0), help="Show the sample at this index, from 0."),
        click.option("--start", type=click.IntRange(min=0), help="Start at this index, from 0."),
    ):
        command = option(command)
    return command


def with_command_options(shown: Panels) -> Panels:
    """Return a sample whose error names the options of the current command in place of arguments of Python."""
    if shown.error is None:
        return shown
    return dataclasses.replace(shown, error=with_options(shown.error, click.get_current_context().command))


def require_one() -> None:
    """That at most one of `--start`, `--index` and `--key` was given; raises `click.UsageError`."""
    context = click.get_current_context()
    for name, others in (("key", ("index", "start")), ("index", ("start",))):
        if context.params.get(name) is not None:
            refuse_given(context, others, f"--{name} selects one sample")


def warn_of(what: str | None) -> None:
    """A warning, if there is one."""
    if what is not None:
        note(f"warning: {what}")


def plain_at(
    source: Any, index: int, decode: Decode | None, *, show_all: bool, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The fields of the sample of an index, as JSON can hold them; why there are none where it is excluded."""
    from penstock.errors import Excluded
    from penstock.look.head import visible

    try:
        return plain(visible(source[index], decode, show_all=show_all)) | dict(more or {})
    except Excluded as error:
        return {"excluded": error.what}


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample as JSON can hold it: long rows of ids are cut, bytes and images named."""
    return {name: _plain_value(value) for name, value in sample.items()}


def _plain_value(value: Any) -> Any:
    if hasattr(value, "tolist"):
        shown = value[:_JSON_TOKENS].tolist() if getattr(value, "ndim", 0) else value.tolist()
        return [*shown, f"… {len(value)} in all"] if getattr(value, "ndim", 0) and len(value) > _JSON_TOKENS else shown
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value)} bytes>"
    if hasattr(value, "mode") and hasattr(value, "tobytes"):
        return f"<{value.mode} image, {value.width} x {value.height}>"
    if isinstance(value, (list, tuple)):
        return [_plain_value(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: one for name, one in dataclasses.asdict(value).items() if one is not None}
    return value
