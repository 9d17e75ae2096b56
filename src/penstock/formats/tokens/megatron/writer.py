"""Writer of a dataset: tokens are streamed to the `.bin`; the index is written last and makes it visible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codec.tokens import dtype_for
from penstock.errors import ConfigError, TooLarge
from penstock.formats._manifest import DATA, ClaimedFile, Provenance, file_digests
from penstock.formats.tokens.common import document_runs, require_eos
from penstock.formats.tokens.joined import JoinedTokens, measured_manifest
from penstock.formats.tokens.megatron.kept import prefix_of, reading_commit
from penstock.formats.tokens.megatron.layout import (
    INDEX,
    MOST_LENGTH,
    Header,
    Kind,
    bin_path,
    encode_header,
    idx_path,
    joint_binding,
    kind_for,
    side_file_path,
)
from penstock.formats.tokens.megatron.publish import claim_pair
from penstock.formats.tokens.megatron.source import open_megatron
from penstock.formats.tokens.writer import Frame, TokenCounts, TokenFileWriter, token_options
from penstock.store.base import Store
from penstock.store.outputs import output_path, settled
from penstock.store.side_file import file_binding, replace_side_file
from penstock.types import Buffer, IntArray, Manifest, OpenOptions

_OWN_OPTIONS = ("dtype", "token_bytes", "vocab_size", "modes")
_STEP = 1 << 20


def create_megatron(store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> MegatronWriter:
    """Return a writer for the dataset of a prefix; the path may be that of the `.bin` or the `.idx`.

    Args:
        store: store of the dataset.
        path: the prefix, with or without a suffix.
        options: `dtype` (one of the eight by name), or `vocab_size`, from which the dtype follows by Megatron's rule:
            uint16 below 65,500 entries, else int32; or `token_bytes` (1, 2 or 4: uint8, uint16, int32). The first
            that is given decides; ids are checked against all. `token_bytes` is also the width of the tokens that
            `write_part` takes. `modes`: one mode a document, int8, for multimodal data.
            `eos_id, tokenizer, tokenizer_digest, inputs, options` go into the side file only.
        overwrite: replace an existing dataset.

    Raises:
        ConfigError: an unknown option, no dtype, or an output that exists.
    """
    own, given = token_options(options, _OWN_OPTIONS, path)
    path = path.rstrip("/")
    prefix = path[:-4] if path.endswith((".bin", ".idx")) else path
    modes = own.pop("modes", None)
    kind = kind_for(prefix, **own)
    if kind is None:
        hint = "Pass vocab_size=, dtype= or token_bytes="
        raise ConfigError("the dtype of the tokens is unknown", path=prefix, hint=hint)
    width = own.get("token_bytes") or min(kind.itemsize, 4)
    limit = min(kind.id_limit, own.get("vocab_size") or kind.id_limit)
    prefix = _target_of(store, prefix)
    return MegatronWriter(store, prefix, kind, limit, dtype_for(width, "<"), modes, given, overwrite=overwrite)


@dataclass(frozen=True, slots=True)
class EncodedIndex:
    """Bytes of an index, piece by piece, for documents of one sequence each, stored back to back.

    Attributes:
        path: path of the dataset, for errors.
        kind: storage of ids.
        tokens: counts of the documents.
        modes: int8[n_docs], or None.
    """

    path: str
    kind: Kind
    tokens: TokenCounts
    modes: NDArray[np.int8] | None = None

    def __iter__(self) -> Iterator[Buffer]:
        kind, modes, num_docs = self.kind, self.modes, self.tokens.num_docs
        if modes is not None and len(modes) != num_docs:
            found = f"{len(modes)} modes"
            raise ConfigError(
                "there must be one mode per document", path=self.path, found=found, expected=f"{num_docs}"
            )
        yield encode_header(Header(kind, num_docs, num_docs, modes is not None))
        for run in self.tokens.lengths():
            yield run.astype("<i4")
        place = 0
        for run in self.tokens.lengths():
            ends = np.cumsum(run) * kind.itemsize + place
            yield (ends - run * kind.itemsize).astype("<i8")
            place = int(ends[-1])
        for first in range(0, num_docs + 1, _STEP):
            yield np.arange(first, min(num_docs + 1, first + _STEP), dtype="<i8")
        if modes is not None:
            yield modes


def join_megatron(options: Mapping[str, Any], tokens: JoinedTokens, path: str) -> Frame | None:
    """Return the bytes around tokens of parts in a dataset; None if its dtype isn't that of the parts.

    Raises:
        TooLarge: an id does not fit, or a document is too long for an index.
    """
    own, given = token_options(options, _OWN_OPTIONS, path)
    kind = kind_for(path, **{name: value for name, value in own.items() if name != "modes"})
    if kind is None or "modes" in own or kind.stored.kind not in "iu" or kind.itemsize != tokens.token_bytes:
        return None
    require_eos(path, kind.ids, given.eos_id)
    limit = min(kind.id_limit, own.get("vocab_size") or kind.id_limit)
    if tokens.max_token_id >= limit:
        raise TooLarge("a token id does not fit", path=path, found=tokens.max_token_id, expected=f"below {limit}")
    for run in tokens.lengths():
        _require_short(path, run)
    return _frame(EncodedIndex(path, kind, tokens), given)


def _frame(index: EncodedIndex, given: Provenance) -> Frame:
    return Frame(b"", (), index, {"dtype": index.kind.name}, given, INDEX, joint_binding)


def _require_short(path: str, lengths: IntArray) -> None:
    if len(lengths) and int(lengths.max()) > MOST_LENGTH:
        found, expected = f"{int(lengths.max())} tokens", f"at most {MOST_LENGTH}"
        raise TooLarge("a document is too long for the index", path=path, found=found, expected=expected)


def _target_of(store: Store, prefix: str) -> str:
    """Return the output path of dataset `prefix`; both files may be links, to the two files of another prefix."""
    prefix = settled(store, prefix)
    links = [output_path(store, path) for path in (bin_path(prefix), idx_path(prefix)) if store.exists(path)]
    if links in ([], [bin_path(prefix)], [idx_path(prefix)], [bin_path(prefix), idx_path(prefix)]):
        return prefix
    target = links[0].removesuffix(".bin")
    if links != [bin_path(target), idx_path(target)]:
        hint = "Use the path of that dataset, or remove the links"
        raise ConfigError("the links aren't the two files of one dataset", path=prefix, found=links[0], hint=hint)
    return target


class MegatronWriter(TokenFileWriter):
    """Streaming writer of documents, each as one sequence."""

    format = "megatron"

    def __init__(
        self,
        store: Store,
        prefix: str,
        kind: Kind,
        id_limit: int,
        part_dtype: np.dtype[Any],
        modes: Any,
        given: Provenance,
        *,
        overwrite: bool,
    ) -> None:
        require_eos(prefix, kind.ids, given.eos_id)
        self._kind = kind
        self._modes = None if modes is None else _as_modes(prefix, modes)
        super().__init__(store, prefix, kind.stored, id_limit, given, overwrite=overwrite, part_dtype=part_dtype)

    def _claim(self) -> ClaimedFile:
        return claim_pair(self._store, self._path, overwrite=self._overwrite)

    @property
    def _data_path(self) -> str:
        return bin_path(self._path)

    def _require_short(self, lengths: IntArray) -> None:
        _require_short(idx_path(self._path), lengths)

    def _frame(self, tokens: TokenCounts) -> Frame:
        return _frame(EncodedIndex(self._path, self._kind, tokens, self._modes), self._given)


def _as_modes(prefix: str, modes: Any) -> NDArray[np.int8]:
    found = np.asarray(modes)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ConfigError(
            "modes must be a one-dimensional array of integers",
            path=prefix,
            found=f"{found.dtype} of shape {found.shape}",
        )
    if found.size and (int(found.min()) < -128 or int(found.max()) > 127):
        raise ConfigError("a mode must fit in int8", path=prefix, found=f"{found.min()} to {found.max()}")
    return found.astype(np.int8)


def write_megatron_manifest(
    store: Store, path: str, options: OpenOptions, known: Manifest | None = None, *, replace: bool = False
) -> str:
    """Count and digest a dataset of another tool, and write its side file; return the side file's path.

    Tokenizer, inputs and options in `known`, else in a side file that fits, are kept. Every byte is read twice. Memory:
    16 bytes per sequence and 64 MiB.

    Raises:
        FormatError: the files are damaged, or contradict the existing side file and `replace` is false.
    """
    committed = reading_commit(store, path)
    prefix = prefix_of(committed, path)
    source = open_megatron(store, path, options, may_trail=replace)
    known = known or source.manifest
    own, given = {"dtype": source.header.kind.name}, Provenance.recorded(known, source.eos_id)
    files = {DATA: bin_path(prefix), INDEX: idx_path(prefix)}
    manifest = measured_manifest(
        "megatron",
        document_runs(source),
        known,
        Frame(b"", (), None, own, given),
        size_bytes=source.size_bytes,
        block_digests={name: file_digests(committed, file) for name, file in files.items()},
        binding=joint_binding(*(file_binding(committed, file) for file in files.values())),
    )
    replace_side_file(store, side_file_path(prefix), manifest, replace=replace)
    return side_file_path(prefix)
