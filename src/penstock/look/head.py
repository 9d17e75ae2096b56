"""Choose samples of a dataset to show, and the fields of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.abc import SupportsKeys
from penstock.errors import ConfigError, NotFound
from penstock.formats._sample_keys import KEY_FIELDS, indices_with_key

Decode = Callable[[Sequence[int]], str]


def first_of(source: Any, start: int | None, index: int | None, key: str | None) -> int:
    """Return the index of the first sample to show.

    Raises:
        NotFound: no sample has this key.
        ConfigError: no sample has this index.
    """
    if key is not None:
        if isinstance(source, SupportsKeys):
            return source.index_of(key)
        found = indices_with_key(source, key)
        if len(found):
            return int(found[0])
        hint = f"Keys are read from {', '.join(KEY_FIELDS)}; use `penstock find --key-field` for another field"
        raise NotFound(f"no sample with the key {key!r}", hint=hint)
    if index is not None and index >= len(source):
        raise ConfigError("index out of range", found=f"--index {index}", expected=f"0 to {len(source) - 1}")
    return index if index is not None else start or 0


def decoder(tokenizer: str | None) -> Decode | None:
    """Return the function that decodes token ids; None if no tokenizer is named."""
    if tokenizer is None:
        return None
    from penstock.prepare.tokens.vocabulary import load_decoder

    return load_decoder(tokenizer)


def visible(sample: Mapping[str, Any], decode: Decode | None, *, show_all: bool) -> dict[str, Any]:
    """Return the fields of a sample, with `show_all` also those that begin with `__`; add decoded tokens as `text`."""
    hidden = [name for name in sample if name.startswith("__") and name != "__key__"]
    shown = {name: value for name, value in sample.items() if name not in hidden}
    if decode is not None and "tokens" in sample:
        shown["text"] = decode(sample["tokens"])
    return shown | ({name: sample[name] for name in hidden} if show_all else {})
