"""The output of `pack`: whether it is one dataset or a folder of token files, and its writer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from penstock._kinds import TokenParts
from penstock.abc import Format, Writer
from penstock.errors import ConfigError
from penstock.formats import BUILT_IN, format_names, get_format, usable_format
from penstock.formats.tokens.folder.index import SUFFIXES
from penstock.prepare.tokens.tokenizer import TokenizerSpec
from penstock.store.base import Store
from penstock.store.outputs import output_path
from penstock.store.place import Given, Place, place_of
from penstock.types import Batch, IntArray, Manifest, Sample

DEFAULT_FILE_TOKENS = 4_000_000_000

_ONE_FOLDER = ("mds", "flat-tokens")
"""Formats of which one dataset is a directory."""
_COLUMN = "tokens"


def understand_output(given: Given, to: str | None, file_tokens: int | None, store: Store) -> tuple[Place, str, bool]:
    """Return the place, the format, and whether the output is a folder of token files.

    A known suffix decides first, then a trailing slash or an existing directory.

    Raises:
        ConfigError: the kind of output isn't clear, or arguments contradict each other.
    """
    is_elsewhere = not isinstance(given, Place) and not place_of(given).is_local
    place = place_of(given, None if is_elsewhere else store)
    slash = not isinstance(given, Place) and os.fspath(given).endswith("/")
    place = Place(place.store, output_path(place.store, place.absolute))
    if to is not None:
        _require_tokens(to, place)
    known = _format_of(place)
    if file_tokens is None and known is not None:
        return place, to or known, False
    if file_tokens is None and not slash and not (place.is_local and place.is_folder()):
        if to is None:
            raise _unknown_format(place)
        return place, to, False
    if file_tokens is None and to in _ONE_FOLDER:
        return place, to, False
    to = to or "pbin"
    if file_tokens is not None and known is not None:
        what, hint = "this is the name of a single dataset, not a folder of token files", "omit file_tokens"
        raise ConfigError(what, path=place.path, hint=f"Give a folder name, or {hint} (--file-tokens)")
    if file_tokens is not None and file_tokens < 1:
        raise ConfigError("file_tokens must be positive", found=f"file_tokens={file_tokens}", expected="1 or more")
    if to not in SUFFIXES:
        hint = "Omit file_tokens (--file-tokens)" if to == "mds" else None
        expected = " | ".join(SUFFIXES)
        raise ConfigError("not a token file format", path=place.path, found=to, expected=expected, hint=hint)
    return place, to, True


def _format_of(output: Place) -> str | None:
    """Return the token format whose suffix an output has."""
    for one in _token_formats():
        if output.path.rstrip("/").endswith(one.traits.suffixes or ("\0",)):
            return one.name
    return None


def _unknown_format(output: Place) -> ConfigError:
    formats = list(_token_formats())
    suffixes = ", ".join(sorted({suffix for one in formats for suffix in one.traits.suffixes}))
    names = ", ".join(sorted({one.name for one in formats} | {"mds"}))
    return ConfigError(
        "the format isn't clear from the name of the output",
        path=output.path,
        expected=suffixes,
        hint=f"End it with a slash for a folder of token files, or specify the format with to= (--to): {names}",
    )


def _require_tokens(to: str, output: Place) -> None:
    """Raise `ConfigError` for a format that is written but not for tokens. Others raise their own errors."""
    traits = get_format(to).traits
    if traits.write and not traits.tokens and to != "mds":
        names = " | ".join(sorted({one.name for one in _token_formats()} | {"mds"}))
        raise ConfigError("not a format for packed tokens", path=output.path, found=to, expected=names)


def _token_formats() -> Iterator[Format]:
    """Yield token formats that can be written. Plug-ins come last, since finding them takes time."""
    names: set[str] = set()
    for some in (lambda: BUILT_IN, format_names):
        for one in (usable_format(name, []) for name in some()):
            if one is not None and one.traits.tokens and one.traits.write and one.name not in names:
                names.add(one.name)
                yield one


def create_writer(
    to: str, place: Place, spec: TokenizerSpec, recorded: Mapping[str, Any], *, overwrite: bool
) -> Writer:
    """Return the writer of a dataset, which takes parts in input order; `recorded`: for its side file."""
    options = writer_options(to, spec, recorded)
    if to == "mds":
        options["columns"] = {_COLUMN: f"ndarray:uint{8 * options.pop('token_bytes')}"}
    chosen = get_format(to)
    writer = chosen.create(place.store, place.path, options, overwrite=overwrite)
    by_document = to == "mds" or (chosen.traits.tokens and not isinstance(writer, TokenParts))
    return _ColumnParts(writer, spec.token_bytes) if by_document else writer


def writer_options(to: str, spec: TokenizerSpec, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the writer of a token format, with what the side file records."""
    options: dict[str, Any] = {"token_bytes": spec.token_bytes, "eos_id": spec.eos_id, "tokenizer": spec.name}
    options |= recorded
    options["options"] = {**options.get("options", {}), **bos_of(spec)}
    if to == "megatron":
        # Its dtype follows from the vocabulary by a rule of its own, not from the width of the parts.
        options["vocab_size"] = spec.num_ids
    return options


def bos_of(spec: TokenizerSpec) -> dict[str, int]:
    """Return the id that the tokenizer puts before every text, as side files record it."""
    before = () if spec.around is None else spec.around[0]
    return {"bos_id": before[0]} if len(before) == 1 else {}


class _ColumnParts:
    """Writer of samples with one column `tokens` that takes finished runs of tokens; see `penstock._kinds.TokenParts`.

    Memory: the current part, mapped, and that of the writer.
    """

    def __init__(self, writer: Writer, token_bytes: int) -> None:
        self._writer = writer
        self._dtype = np.dtype(f"<u{token_bytes}")

    @property
    def part_bytes(self) -> int:
        """Width of the tokens that `write_part` takes."""
        return self._dtype.itemsize

    def write_part(self, path: str, start_bytes: int, doc_lengths: IntArray, max_token_id: int | None) -> None:
        tokens = np.memmap(path, self._dtype, "r", start_bytes, (int(doc_lengths.sum()),))
        for document in np.split(np.asarray(tokens), np.cumsum(doc_lengths)[:-1]):
            self._writer.write({_COLUMN: document})

    def write(self, sample: Sample, /) -> None:
        self._writer.write(sample)

    def write_batch(self, batch: Batch, /) -> None:
        self._writer.write_batch(batch)

    def commit(self) -> Manifest:
        return self._writer.commit()

    def abort(self) -> None:
        self._writer.abort()

    def __enter__(self) -> Self:
        self._writer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any:
        return self._writer.__exit__(kind, error, trace)
