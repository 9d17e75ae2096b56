"""Token sources with planes: fields of documents that are read with windows.

Loss masks that other tools write next to tokens, one byte per token without a header, are the plane `loss_mask`. A byte
other than 0 counts for the loss.

| tokens | mask | written by |
|---|---|---|
| `X.ds` | `X.ds.loss` | datatrove |
| `token_ids….npy` | `labels_mask….npy` | open-instruct, for OLMo-core's `label_mask_paths` |
| `input_ids….npy` | `label_mask….npy` | OLMo's scripts, for its `label_mask_paths` |

OLMo accepts any names, as pairs in its configuration. A mask with another name needs a link with this name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._access import capability
from penstock._arrays import as_index, as_indices, column
from penstock._tokens import DROP, LOSS_MASK, Plane, borders_at, borders_of, plane_fields
from penstock.abc import Format, Source, TokenSource
from penstock.errors import ConfigError, Truncated
from penstock.formats._excluded import TOKEN_FILE
from penstock.formats._planes import INDEX, PlaneFile, PlaneValues, base_at, listed_planes, open_planes, require_inside
from penstock.node.tokens import OverlaidTokens
from penstock.store.base import Store
from penstock.store.fingerprint import sample_fingerprint
from penstock.types import Batch, Finding, IntArray, OpenOptions, ReadMode, Sample, Schema

_METHODS = ("place_of", "gather_flagged", "prefetch", "details", "proof")
"""Optional methods that must be attributes of the object itself; None if the tokens don't have them."""


def with_planes(chosen: Format, store: Store, path: str, options: OpenOptions, source: Any) -> Any:
    """Return a source with the planes next to its data; the source itself without planes, or if they are ignored.

    Raises:
        Corrupt, Truncated: planes of other tokens, a missing or truncated plane, a mask of another length.
    """
    if options.planes is None or options.split is not None:
        return source
    if mask_path(chosen.name, path) is not None:
        mask = mask_beside(chosen.name, store, path, source.num_tokens, options.read)
        return source if mask is None else PlanedTokens(source, {LOSS_MASK: mask})
    base = base_at(chosen.name, store, path)
    if base is None:
        return source
    _require_whole(store, base)
    entries = listed_planes(store, base, source)
    return (
        PlanedTokens(source, open_planes(store, base, entries, source.num_tokens, options.read)) if entries else source
    )


def _require_whole(store: Store, base: str) -> None:
    """Raise `ConfigError` for one file of a folder of token files: the planes belong to all its files together."""
    folder, _, name = base.rpartition("/")
    whole = f"{folder or '.'}/index.json"
    if TOKEN_FILE.match(name) and store.exists(whole + INDEX):
        what, hint = "this is one file of a dataset with planes", f"Open {folder or '.'}. {DROP}"
        raise ConfigError(what, path=base, found=whole + INDEX, hint=hint)


class PlanedTokens(OverlaidTokens):
    """Tokens of a dataset on disk, with planes; all other attributes are those of the tokens."""

    kind = "open"

    def __init__(self, tokens: TokenSource, planes: Mapping[str, PlaneFile | MaskFile]) -> None:
        super().__init__(tokens)
        self._planes = dict(planes)
        for name in _METHODS:
            setattr(self, name, capability(tokens, name))

    def __reduce__(self) -> tuple[object, ...]:
        return (PlanedTokens, (self.source, self._planes))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "source":
            raise AttributeError(name)
        return getattr(self.source, name)

    @property
    def planes(self) -> Mapping[str, Plane]:
        return self._planes

    @property
    def schema(self) -> Schema:
        return Schema((*self.source.schema.fields, *plane_fields(self, None)))

    def identity(self) -> tuple[Any, ...]:
        return ("planes-1", self.source.fingerprint, [list(one.identity) for one in self._planes.values()])

    def __getitem__(self, index: int, /) -> Sample:
        index = as_index(index, len(self))
        start, stop = borders_of(self.source, index, index + 1).tolist()
        planes = {name: plane.read(start, stop) for name, plane in self._planes.items()}
        return {"tokens": self.tokens(start, stop), **planes}

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the documents at `indices` (int64[k]); a list of arrays if their lengths differ."""
        chosen = as_indices(indices, len(self))
        ranges = list(zip(*(ends.tolist() for ends in borders_at(self.source, chosen)), strict=True))
        planes = {name: column([one.read(*ends) for ends in ranges]) for name, one in self._planes.items()}
        return {**self.source.get_batch(chosen), **planes}

    def children(self) -> Mapping[str, Source[Any]]:
        return self.source.children()

    def recipe(self) -> dict[str, Any]:
        """Return the recipe of the tokens; opening it finds the planes."""
        return self.source.recipe()

    def summary(self) -> str:
        return f"{self.source.summary()}  planes={','.join(self._planes)}"


_NAMES = (("token_ids", "labels_mask"), ("input_ids", "label_mask"))


def mask_path(format: str, path: str) -> str | None:
    """Return the path of the mask of a token file; None if no tool writes masks for the format."""
    if format == "datatrove":
        return path + ".loss"
    folder, slash, name = path.rpartition("/")
    for tokens, mask in _NAMES if format == "raw-tokens" and name.endswith(".npy") else ():
        if name.startswith(tokens):
            return folder + slash + mask + name.removeprefix(tokens)
    return None


@dataclass(frozen=True)
class MaskFile:
    """Loss mask in a file of its own; see `penstock._tokens.Plane`. Thread-safe, picklable.

    Attributes:
        num_tokens: number of values.
        file: the values, one byte each.
    """

    num_tokens: int
    file: PlaneValues

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.bool_)

    @cached_property
    def identity(self) -> tuple[str, str, str]:
        """Parts of the mask that a fingerprint covers: name, dtype, and a digest of samples of its bytes."""
        store, path = self.file.place
        return LOSS_MASK, "bool", sample_fingerprint(store, "loss mask", b"", [(LOSS_MASK, path)])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return bool[stop - start], the values of tokens `[start, stop)`; raise `IndexError` if out of range."""
        require_inside(start, stop, self.num_tokens)
        return self.file.read(start, stop) != 0

    def gather(self, starts: IntArray, length: int) -> NDArray[Any]:
        """Return bool[len(starts), length], one window per row; raise `IndexError` if out of range."""
        starts = np.asarray(starts, np.int64)
        if starts.size:
            require_inside(int(starts.min()), int(starts.max()) + length, self.num_tokens)
        return self.file.gather(starts, length) != 0


def mask_beside(format: str, store: Store, path: str, num_tokens: int, read: ReadMode) -> MaskFile | None:
    """Return the mask next to the tokens, or None.

    Raises:
        Truncated: its length differs from the number of tokens.
        UnsafeData: it is a pipe or a device.
    """
    beside = mask_path(format, path)
    if beside is None or not store.exists(beside):
        return None
    size_bytes = store.size(beside)
    if size_bytes != num_tokens:
        what, expected = "the loss mask and the tokens have different lengths", f"{num_tokens} bytes, one per token"
        raise Truncated(what, path=beside, found=f"{size_bytes} bytes", expected=expected, hint=f"Restore it. {DROP}")
    return MaskFile(num_tokens, PlaneValues(store, beside, num_tokens, np.dtype("u1"), read))


def check_mask(format: str, store: Store, path: str, num_tokens: int) -> list[Finding]:
    try:
        mask_beside(format, store, path, num_tokens, "pread")
    except Truncated as error:
        what, where = f"{error.what}: {error.found}", str(error.path)
        return [Finding(f"{format}.loss-mask", "error", where, None, what, str(error.expected), error.hint)]
    return []
