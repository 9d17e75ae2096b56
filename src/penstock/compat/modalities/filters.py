"""Modalities' two ways to filter a packed file. Both keep the order and the token width, and give the same bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.compat.modalities.commands.data import policy_name
from penstock.compat.modalities.embedded import IN_RAM
from penstock.convert import document_runs
from penstock.errors import ConfigError
from penstock.formats._manifest import side_path
from penstock.formats.tokens.pbin.source import open_pbin
from penstock.formats.tokens.pbin.writer import create_pbin
from penstock.store.exclude_list import require_no_list
from penstock.store.place import Place, local_place, same_file
from penstock.types import IntArray, OpenOptions, TokenArray

_RUN_TOKENS = 1 << 22
_SAMPLE_KEY = "input_ids"

KeepRun = Callable[[int, TokenArray, IntArray], NDArray[np.bool_]]
"""Number of the first document of a run, its tokens and its document lengths → which documents stay."""


def filter_dataset(
    src_path: str | os.PathLike[str],
    dst_path: str | os.PathLike[str],
    filter_func: Callable[[tuple[int, dict[str, NDArray[Any]]]], bool],
    *,
    overwrite: bool = False,
) -> None:
    """Write the documents for which `filter_func((number, {"input_ids": array}))` is true.

    The array is uint8, int32 or int64, for tokens of 1, 2 or 4 bytes. Nothing is visible until everything is done.
    Memory: 16 MiB of tokens, or the longest document, and 8 bytes per document.

    Args:
        src_path: a packed file.
        dst_path: the file to write.
        filter_func: called once per document, in order.
        overwrite: replace an existing file. The original always does.

    Raises:
        NotFound: the file doesn't exist.
        FormatError: the file is damaged.
        ConfigError: the output exists, or is the input.

    Examples:
        >>> from penstock.compat.modalities import PackedMemMapDatasetBase, filter_dataset
        >>> def is_long(item):
        ...     number, sample = item
        ...     return len(sample["input_ids"]) > 8
        >>> filter_dataset("corpus.pbin", "long.pbin", is_long)
        >>> len(PackedMemMapDatasetBase("long.pbin", "input_ids"))
        2
    """

    def keep(first: int, tokens: TokenArray, doc_lengths: IntArray) -> NDArray[np.bool_]:
        documents = np.split(tokens.astype(IN_RAM[tokens.dtype.itemsize]), np.cumsum(doc_lengths)[:-1])
        return np.array([bool(filter_func((first + i, {_SAMPLE_KEY: one}))) for i, one in enumerate(documents)])

    _filter(*_places(src_path, dst_path), keep, overwrite=overwrite)


def create_filtered_tokenized_dataset(
    input_data_path: str | os.PathLike[str],
    filter_routine: Callable[[int], bool],
    output_data_path: str | os.PathLike[str],
    file_existence_policy: str | Enum = "error",
) -> None:
    """Write the documents whose number passes `filter_routine`.

    Args:
        input_data_path: a packed file.
        filter_routine: called once per document number, in order.
        output_data_path: the file to write.
        file_existence_policy: for an existing output: `"error"`, `"skip"` to do nothing, or `"override"` to replace it
            once the new file is complete. Modalities' own `FileExistencePolicy` is accepted too.

    Raises:
        NotFound: the file doesn't exist.
        FormatError: the file is damaged.
        ConfigError: the output exists or is the input, the policy is unknown, or no document is left.

    Examples:
        >>> from penstock.compat.modalities import PackedMemMapDatasetBase, create_filtered_tokenized_dataset
        >>> create_filtered_tokenized_dataset("corpus.pbin", lambda number: number % 2 == 0, "even.pbin")
        >>> len(PackedMemMapDatasetBase("even.pbin", "input_ids"))
        3
    """

    def keep(first: int, tokens: TokenArray, doc_lengths: IntArray) -> NDArray[np.bool_]:
        return np.array([bool(filter_routine(first + i)) for i in range(len(doc_lengths))])

    policy = policy_name(file_existence_policy)
    source, target = _places(input_data_path, output_data_path)
    if policy == "skip" and target.exists():
        return
    _filter(source, target, keep, overwrite=policy == "override", may_be_empty=False)


def _filter(source_place: Place, target: Place, keep: KeepRun, *, overwrite: bool, may_be_empty: bool = True) -> None:
    require_no_list(
        source_place.store, side_path(source_place.path), "the routine receives the indices of all documents"
    )
    source = open_pbin(source_place.store, source_place.path, OpenOptions())
    known = source.manifest
    options = {
        "token_bytes": source.dtype.itemsize,
        "eos_id": source.eos_id,
        "tokenizer": None if known is None else known.tokenizer,
        "tokenizer_digest": source.tokenizer_digest,
    }
    with create_pbin(target.store, target.path, options, overwrite=overwrite) as writer:
        first, kept = 0, 0
        for tokens, doc_lengths in document_runs(source, _RUN_TOKENS):
            stay = keep(first, tokens, doc_lengths)
            writer.write_run(tokens[np.repeat(stay, doc_lengths)], doc_lengths[stay])
            first += len(doc_lengths)
            kept += int(stay.sum())
        if not (kept or may_be_empty):
            raise ConfigError(
                "the filter removes all documents", path=source_place.path, found=f"{first} documents before filtering"
            )


def _places(src_path: str | os.PathLike[str], dst_path: str | os.PathLike[str]) -> tuple[Place, Place]:
    """Return both places; raise `ConfigError` if they are the same file."""
    source, target = (local_place(one, "a Modalities packed file") for one in (src_path, dst_path))
    if same_file(source.path, target.path):
        raise ConfigError("the output would replace the input", path=dst_path)
    return source, target
