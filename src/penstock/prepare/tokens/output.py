"""What an output is by its name: one dataset, or a folder of token files.

The writer of a packed dataset, which takes parts in input order; and what bad lines are called.

Parts of tokens → samples with one column `tokens`: how `pack` writes MDS.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from penstock._kinds import TokenParts
from penstock.abc import Format, Store, Writer
from penstock.errors import ConfigError
from penstock.formats import BUILT_IN, format_names, get_format, usable_format
from penstock.formats.tokens.folder.index import SUFFIXES
from penstock.prepare.tokens.tokenizer import TokenizerSpec
from penstock.store.outputs import output_path
from penstock.store.place import Given, Place, place_of
from penstock.types import Batch, IntArray, Manifest, Sample

DEFAULT_FILE_TOKENS = 4_000_000_000

_ONE_FOLDER = ("mds", "flat-tokens")
"""Formats of which one dataset is a folder."""


def understand_output(given: Given, to: str | None, file_tokens: int | None, store: Store) -> tuple[Place, str, bool]:
    """`(place, format, whether it is a folder of token files)`.

    A known suffix decides first; then a slash at the end, or a folder that is there.

    Raises:
        ConfigError: nothing says what it is, or two things contradict each other.
    """
    place = place_of(given, None if _is_elsewhere(given) else store)
    slash = not isinstance(given, Place) and os.fspath(given).endswith("/")
    place = Place(place.store, output_path(place.store, place.absolute))
    if to is not None:
        require_packed(to, place)
    known = format_of(place)
    if file_tokens is None and known is not None:
        return place, to or known, False
    if file_tokens is None and not slash and not _is_folder(place):
        if to is None:
            raise no_format(place)
        return place, to, False
    if file_tokens is None and to in _ONE_FOLDER:
        return place, to, False
    to = to or "pbin"
    if file_tokens is not None and known is not None:
        hint = "Give a folder name, or omit file_tokens (--file-tokens)"
        raise ConfigError(
            "this is the name of a single dataset, not a folder of token files", path=place.path, hint=hint
        )
    if file_tokens is not None and file_tokens < 1:
        raise ConfigError("file_tokens must be positive", found=f"file_tokens={file_tokens}", expected="1 or more")
    if to not in SUFFIXES:
        hint = "Omit file_tokens (--file-tokens)" if to == "mds" else None
        expected = " | ".join(SUFFIXES)
        raise ConfigError("not a token file format", path=place.path, found=to, expected=expected, hint=hint)
    return place, to, True


def _is_elsewhere(given: Given) -> bool:
    return not isinstance(given, Place) and not place_of(given).is_local


def _is_folder(place: Place) -> bool:
    return place.is_local and place.is_folder()


def format_of(output: Place) -> str | None:
    """The token format whose suffix an output has."""
    for one in _packed():
        if output.path.rstrip("/").endswith(one.traits.suffixes or ("\0",)):
            return one.name
    return None


def no_format(output: Place) -> ConfigError:
    """The error for an output that is neither a folder nor named like a file of a format."""
    packed = list(_packed())
    suffixes = ", ".join(sorted({suffix for one in packed for suffix in one.traits.suffixes}))
    names = ", ".join(sorted({one.name for one in packed} | {"mds"}))
    return ConfigError(
        "the format isn't clear from the name of the output",
        path=output.path,
        expected=suffixes,
        hint=f"End it with a slash for a folder of token files, or specify the format with to= (--to): {names}",
    )


def require_packed(to: str, output: Place) -> None:
    """That a format which is written holds tokens; raises `ConfigError`. Others say themselves why they can't."""
    traits = get_format(to).traits
    if traits.write and not traits.tokens and to != "mds":
        names = " | ".join(sorted({one.name for one in _packed()} | {"mds"}))
        raise ConfigError("not a format for packed tokens", path=output.path, found=to, expected=names)


def _packed() -> Iterator[Format]:
    """Token formats that can be written; plug-ins last, as looking for them takes time."""
    asked: set[str] = set()
    for names in (BUILT_IN, format_names):
        for one in (usable_format(name, []) for name in (names() if callable(names) else names)):
            if one is not None and one.traits.tokens and one.traits.write and one.name not in asked:
                asked.add(one.name)
                yield one


def create_writer(to: str, place: Place, spec: TokenizerSpec, recorded: Mapping[str, Any], **how: Any) -> Writer:
    """The writer of a packed dataset.

    Args:
        to: its format.
        place: where it goes.
        spec: the tokenizer.
        recorded: what the side file says of the data.
        how: `overwrite`.
    """
    options = writer_options(to, spec, recorded)
    if to == "mds":
        options["columns"] = {COLUMN: f"ndarray:uint{8 * options.pop('token_bytes')}"}
    chosen = get_format(to)
    writer = chosen.create(place.store, place.path, options, overwrite=bool(how.get("overwrite")))
    by_document = to == "mds" or (chosen.traits.tokens and not isinstance(writer, TokenParts))
    return ColumnParts(writer, spec.token_bytes) if by_document else writer


def writer_options(to: str, spec: TokenizerSpec, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the writer of a token format, and what is recorded of the data."""
    options: dict[str, Any] = {"token_bytes": spec.token_bytes, "eos_id": spec.eos_id, "tokenizer": spec.name}
    options |= recorded
    options["options"] = {**options.get("options", {}), **bos_of(spec)}
    if to == "megatron":
        # Its dtype follows from the vocabulary by a rule of its own, not from the width of the parts.
        options["vocab_size"] = spec.num_ids
    return options


def bos_of(spec: TokenizerSpec) -> dict[str, int]:
    """The id that the tokenizer puts before every text, as side files record it."""
    before = () if spec.around is None else spec.around[0]
    return {"bos_id": before[0]} if len(before) == 1 else {}


COLUMN = "tokens"


class ColumnParts:
    """A writer of samples that takes finished runs of tokens, a document a sample; see `penstock._kinds.TokenParts`.

    Memory: the part at hand, mapped, and what the writer holds.

    Args:
        writer: takes `{"tokens": uint[n]}`.
        token_bytes: width of the tokens in the parts.
    """

    def __init__(self, writer: Writer, token_bytes: int) -> None:
        self._writer = writer
        self._dtype = np.dtype(f"<u{token_bytes}")

    @property
    def part_bytes(self) -> int:
        """Width of the tokens that `write_part` takes."""
        return self._dtype.itemsize

    def write_part(self, path: str, start_bytes: int, doc_lengths: IntArray, max_token_id: int | None) -> None:
        """Append documents whose tokens lie back to back in a file."""
        tokens = np.memmap(path, self._dtype, "r", start_bytes, (int(doc_lengths.sum()),))
        for document in np.split(np.asarray(tokens), np.cumsum(doc_lengths)[:-1]):
            self._writer.write({COLUMN: document})

    def write(self, sample: Sample, /) -> None:
        """Add one document."""
        self._writer.write(sample)

    def write_batch(self, batch: Batch, /) -> None:
        """Add k documents."""
        self._writer.write_batch(batch)

    def commit(self) -> Manifest:
        """Make the dataset visible, durably."""
        return self._writer.commit()

    def abort(self) -> None:
        """Discard everything written so far."""
        self._writer.abort()

    def __enter__(self) -> Self:
        self._writer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any:
        return self._writer.__exit__(kind, error, trace)
