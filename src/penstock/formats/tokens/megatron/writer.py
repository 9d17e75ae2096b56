"""Writer of a dataset: tokens are streamed to the `.bin`; the index is written last and makes it visible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.abc import Staged
from penstock.codec.tokens import dtype_for
from penstock.errors import ConfigError, TooLarge
from penstock.formats._manifest import DATA, FileDigests, Provenance
from penstock.formats.tokens.common import require_eos
from penstock.formats.tokens.joined import Frame, JoinedTokens
from penstock.formats.tokens.megatron.layout import (
    MOST_LENGTH,
    Header,
    Kind,
    bin_path,
    encode_header,
    idx_path,
    is_index,
    kind_for,
)
from penstock.formats.tokens.megatron.manifest import INDEX, joint_binding, side_file_path
from penstock.formats.tokens.megatron.publish import may_write, publish, staged_files
from penstock.formats.tokens.writer import TokenFileWriter, token_manifest, token_options
from penstock.store.base import Store
from penstock.store.local import output_exists
from penstock.store.outputs import claim_files, output_path, settled
from penstock.types import IntArray, Manifest

_OTHER = "Choose another output, or remove it"
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


def encode_index(
    kind: Kind, lengths: Callable[[], Iterable[IntArray]], num_docs: int, modes: NDArray[np.int8] | None
) -> Iterator[bytes | NDArray[Any]]:
    """Yield the bytes of an index, for documents of one sequence each, stored back to back.

    Args:
        kind: how ids are stored.
        lengths: gives runs of int64[k], the tokens of each document; asked twice.
        num_docs: documents in all.
        modes: int8[n_docs], or None.
    """
    yield encode_header(Header(kind, num_docs, num_docs, modes is not None))
    for run in lengths():
        yield run.astype("<i4")
    place = 0
    for run in lengths():
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
    index = encode_index(kind, tokens.lengths, tokens.num_docs, None)
    return Frame(b"", (), index, {"dtype": kind.name}, given, INDEX, joint_binding)


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


def _require_replaceable(store: Store, prefix: str, *, overwrite: bool) -> None:
    """Raise an error unless there is nothing here, unfinished output, or a dataset to be replaced."""
    if may_write(store, prefix):
        return
    index = idx_path(prefix)
    if not overwrite:
        store.sweep(index)
        raise output_exists(prefix, index if store.exists(index) else bin_path(prefix))
    if store.exists(index) and not is_index(store, index):
        raise ConfigError("the existing file is not a Megatron index", path=index, hint=_OTHER)


class MegatronWriter(TokenFileWriter):
    """Streaming writer of documents, each as one sequence."""

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
        super().__init__(prefix, part_dtype, id_limit, given)
        self._store = store
        self._kind = kind
        self._modes = None if modes is None else _as_modes(prefix, modes)
        self._overwrite = overwrite
        # Tokens without an index were left by a killed writer: see `may_write`.
        self._claim = claim_files(store, bin_path(prefix), idx_path(prefix), side=side_file_path(prefix))
        try:
            _require_replaceable(store, prefix, overwrite=overwrite)
            self._files = staged_files(store, prefix, overwrite=overwrite)
            self._staged = self._files.stage(bin_path(prefix))
        except BaseException:
            self._claim.release()
            raise
        self._digests = FileDigests(self._staged)

    @property
    def _data_path(self) -> str:
        return bin_path(self._path)

    @property
    def _stores_parts(self) -> bool:
        return self._kind.stored.kind in "iu" and self._kind.itemsize == self.part_bytes

    def _require_short(self, lengths: IntArray) -> None:
        _require_short(idx_path(self._path), lengths)

    def _append_run(self, tokens: NDArray[Any], lengths: IntArray) -> NDArray[Any]:
        self._append(np.ascontiguousarray(tokens, self._kind.stored))
        return tokens

    def _commit(self) -> Manifest:
        """Write index and side file, and make the dataset visible: the index last."""
        idx = self._files.stage(idx_path(self._path))
        index_digests, index_binding = self._write_index(idx)
        block_digests, binding = self._digests.finish()
        manifest = token_manifest(
            "megatron",
            self._tally,
            self._given,
            {"dtype": self._kind.name},
            size_bytes=self._staged.tell() + idx.tell(),
            block_digests={DATA: block_digests, INDEX: index_digests},
            binding=joint_binding(binding, index_binding),
        )
        publish(self._store, self._path, self._files, manifest, self._write_index, overwrite=self._overwrite)
        return manifest

    def _close(self) -> None:
        self._files.abort()
        self._claim.release()

    def _write_index(self, staged: Staged) -> tuple[tuple[str, ...], str]:
        """Write the index to `staged`; return its block digests and binding."""
        count = self._tally.num_docs
        if self._modes is not None and len(self._modes) != count:
            raise ConfigError(
                "there must be one mode per document",
                path=self._path,
                found=f"{len(self._modes)} modes",
                expected=f"{count}",
            )
        digests = FileDigests(staged)
        for piece in encode_index(self._kind, self._tally.lengths, count, self._modes):
            staged.write(piece)
            digests.update(piece)
        return digests.finish()


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
