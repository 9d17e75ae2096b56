"""Which samples a command shows, and their texts: the same options of `head`, `preview` and `explain --show`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli._energon import refuse_given
from penstock.cli._hints import with_options
from penstock.cli._output import note

if TYPE_CHECKING:
    from penstock.view.facts.panel import Panels

_JSON_TOKENS = 4096

Command = TypeVar("Command", bound=Callable[..., Any])
Decode = Callable[[Sequence[int]], str]


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


def first_of(source: Any, start: int | None, index: int | None, key: str | None) -> int:
    """The index of the first sample to show.

    Raises:
        NotFound: no sample has this key.
        ConfigError: no sample has this index.
    """
    from penstock.abc import SupportsKeys
    from penstock.errors import ConfigError, NotFound
    from penstock.formats._sample_keys import KEY_FIELDS, indices_with_key

    if key is not None:
        if isinstance(source, SupportsKeys):
            return source.index_of(key)
        found = indices_with_key(source, key)
        if len(found):
            return int(found[0])
        hint = f"Keys are read from {', '.join(KEY_FIELDS)}; use `penstock find --key-field` for another field"
        raise NotFound(f"no sample with the key {key!r}", hint=hint)
    chosen = index if index is not None else start or 0
    if index is not None and index >= len(source):
        raise ConfigError("index out of range", found=f"--index {index}", expected=f"0 to {len(source) - 1}")
    return chosen


def decoder(tokenizer: str | None) -> Decode | None:
    """What makes text of ids; None where no tokenizer is named."""
    if tokenizer is None:
        return None
    from penstock.prepare.tokens.decode import load_decoder

    return load_decoder(tokenizer)


def visible(sample: Mapping[str, Any], decode: Decode | None, *, show_all: bool) -> dict[str, Any]:
    """The fields of a sample: its key, its parts, then with `show_all` what begins with `__`; tokens as text too."""
    hidden = [name for name in sample if name.startswith("__") and name != "__key__"]
    shown = {name: value for name, value in sample.items() if name not in hidden}
    if decode is not None and "tokens" in sample:
        shown["text"] = decode(sample["tokens"])
    return shown | ({name: sample[name] for name in hidden} if show_all else {})


def plain_at(
    source: Any, index: int, decode: Decode | None, *, show_all: bool, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The fields of the sample of an index, as JSON can hold them; why there are none where it is excluded."""
    from penstock.errors import Excluded

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
