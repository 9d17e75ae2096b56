"""Token sources with planes: planes are fields of documents, and are read with windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock._arrays import as_index, as_indices, column
from penstock._digest import digest
from penstock._tokens import DROP, LOSS_MASK, borders_at, borders_of, had_eos_borders, plane_fields
from penstock._tree import brief, html, tree
from penstock.abc import Format, Source, TokenSource
from penstock.errors import ConfigError
from penstock.formats._excluded import TOKEN_FILE
from penstock.formats._masks import MaskFile, mask_beside, mask_path
from penstock.formats._planes import INDEX, PlaneFile, base_at, listed_planes, open_planes
from penstock.store.base import Store
from penstock.types import Batch, IntArray, OpenOptions, Sample, Schema, TokenArray

_POWERS = (
    *("place_of", "prefetch", "gather_starts", "gather_flagged", "token_extent", "block_files", "storage_blocks"),
    *("details", "expect_parts", "proof"),
)
"""Methods taken from the tokens; None if the tokens don't have them."""


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


class PlanedTokens:
    """Token source with planes.

    Attributes:
        bare: the tokens alone.
        planes: plane by name.
    """

    def __init__(self, bare: TokenSource, planes: Mapping[str, PlaneFile | MaskFile]) -> None:
        self.bare = bare
        self.planes = dict(planes)
        for name in _POWERS:
            setattr(self, name, getattr(bare, name, None))

    def __reduce__(self) -> tuple[object, ...]:
        return (PlanedTokens, (self.bare, self.planes))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "bare":
            raise AttributeError(name)
        return getattr(self.bare, name)

    @property
    def schema(self) -> Schema:
        """Schema of the documents: `tokens` and the planes."""
        return Schema((*self.bare.schema.fields, *plane_fields(self, None)))

    @property
    def fingerprint(self) -> str:
        """Digest of the fingerprints of the tokens and of the planes."""
        return digest("planes-1", self.bare.fingerprint, [list(one.identity) for one in self.planes.values()])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the token ids."""
        return self.bare.dtype

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return self.bare.num_tokens

    @property
    def doc_starts(self) -> IntArray:
        """Document boundaries of the tokens, int64[n_docs + 1]."""
        return self.bare.doc_starts

    @property
    def had_eos_borders(self) -> bool:
        """Whether document boundaries used to come from the EOS id; see `penstock._tokens.had_eos_borders`."""
        return had_eos_borders(self.bare)

    @property
    def eos_id(self) -> int | None:
        """EOS id of the tokens."""
        return self.bare.eos_id

    def __len__(self) -> int:
        return len(self.bare)

    def __getitem__(self, index: int, /) -> Sample:
        index = as_index(index, len(self))
        start, stop = borders_of(self.bare, index, index + 1).tolist()
        planes = {name: plane.read(start, stop) for name, plane in self.planes.items()}
        return {"tokens": self.bare.tokens(start, stop), **planes}

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the documents at `indices` (int64[k]); a list of arrays if their lengths differ."""
        chosen = as_indices(indices, len(self))
        ranges = list(zip(*(ends.tolist() for ends in borders_at(self.bare, chosen)), strict=True))
        planes = {name: column([one.read(*ends) for ends in ranges]) for name, one in self.planes.items()}
        return {**self.bare.get_batch(chosen), **planes}

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Return the tokens `[start, stop)`, uint[stop - start]."""
        return self.bare.tokens(start, stop)

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """Return one window per row, uint[len(starts), length], written into `out` if given."""
        return self.bare.gather(starts, length, out)

    def children(self) -> Mapping[str, Source[Any]]:
        """Return an empty mapping: data on disk has no children."""
        return self.bare.children()

    def recipe(self) -> dict[str, Any]:
        """Return the recipe of the tokens; opening it finds the planes."""
        return self.bare.recipe()

    def summary(self) -> str:
        """Return one line: the summary of the tokens and the names of the planes."""
        bare: Any = self.bare
        return f"{bare.summary()}  planes={','.join(self.planes)}"

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html
