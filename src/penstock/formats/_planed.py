"""Token sources with planes: planes are fields of documents, and are read with windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock._access import capability
from penstock._arrays import as_index, as_indices, column
from penstock._tokens import DROP, LOSS_MASK, Plane, borders_at, borders_of, plane_fields
from penstock.abc import Format, Source, TokenSource
from penstock.errors import ConfigError
from penstock.formats._excluded import TOKEN_FILE
from penstock.formats._masks import MaskFile, mask_beside, mask_path
from penstock.formats._planes import INDEX, PlaneFile, base_at, listed_planes, open_planes
from penstock.node.tokens import OverlaidTokens
from penstock.store.base import Store
from penstock.types import Batch, IntArray, OpenOptions, Sample, Schema

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
