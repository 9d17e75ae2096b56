"""Loader for JAX: batches as jax arrays, joined over processes if a sharding is given.

Token ids become int32, the default of jax. Everything else keeps its dtype, if jax has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from penstock._optional import require
from penstock.abc import Source, Stream
from penstock.errors import ConfigError
from penstock.load.collate import Collate, Then, collate_columns, signed_ids
from penstock.load.loader import Loader
from penstock.types import Batch

jax: Any = require("jax", extra="jax")

_NOT_ROWS = frozenset({"cu_seqlens", "max_seqlen"})
"""Fields without one row per sample: they stay local to this process."""


class JaxLoader:
    """Loader that delivers dicts of jax arrays.

    State, seeking and elastic resume are those of `Loader`.

    Each process reads its own samples: of a step's positions, process r of W has those with `p ≡ r (mod W)`. With a
    sharding, the rows of all processes form one global array `[micro_batch * W, ...]`, the rows of process 0 first;
    `cu_seqlens` and `max_seqlen` stay those of this process. Without a sharding, arrays contain only this process's
    rows.

    Args:
        data: as for `Loader`, like all arguments not listed here.
        global_batch: as for `Loader`.
        sharding: for every field with one row per sample: a `jax.sharding.Sharding`, or a mapping from field names;
            fields not in the mapping stay local. A `NamedSharding` is cut to the number of dimensions of each field.
        rank, world: by default `jax.process_index()` and `jax.process_count()`.
        collate: function from columns to a dict of arrays, before jax arrays are made.
        options: `micro_batch`, `start`, `workers`, `prefetch`, `tail`, `on_error`, `substitute_limit`.

    Raises:
        ConfigError: arguments don't match each other.

    Examples:
        ```python
        loader = JaxLoader(ps.Shuffle(windows, seed=0), global_batch=64, sharding=sharding)
        for batch in loader:
            state = step(state, batch["inputs"], batch["targets"])
        ```
    """

    def __init__(
        self,
        data: Stream[Any] | Source[Any],
        global_batch: int,
        *,
        sharding: Any = None,
        rank: int | None = None,
        world: int | None = None,
        collate: Collate | None = None,
        **options: Any,
    ) -> None:
        if (rank is None) != (world is None):
            raise ConfigError("rank and world must be given together", found=f"rank={rank}, world={world}")
        if rank is None:
            rank, world = jax.process_index(), jax.process_count()
        to_int32 = Then(collate_columns if collate is None else collate, signed_ids(data, "int32"))
        self._loader = Loader(data, global_batch, rank=rank, world=world, collate=to_int32, **options)
        self._sharding = sharding

    @property
    def rank(self) -> int:
        """Data-parallel rank, from 0."""
        return self._loader.rank

    @property
    def world(self) -> int:
        """Number of data-parallel ranks."""
        return self._loader.world

    @property
    def global_batch(self) -> int:
        """Samples per step over all ranks."""
        return self._loader.global_batch

    @property
    def step(self) -> int:
        """Number of complete steps delivered, which is the number of the next step."""
        return self._loader.step

    @property
    def consumed(self) -> int:
        """Global samples of the complete steps delivered."""
        return self._loader.consumed

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return map(self._to_jax, iter(self._loader))

    def __repr__(self) -> str:
        return repr(self._loader).replace("<Loader", "<JaxLoader", 1)

    def close(self) -> None:
        """Stop the workers; see `Loader.close`."""
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def seek(self, step: int) -> None:
        """Continue with `step`; see `Loader.seek`."""
        self._loader.seek(step)

    def state_dict(self) -> dict[str, Any]:
        """Return the run's state as plain JSON, the same as that of a `Loader`."""
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any], accept: tuple[str, ...] = ()) -> list[str]:
        """Resume from `state`; see `Loader.load_state_dict`."""
        return self._loader.load_state_dict(state, accept)

    def _to_jax(self, batch: Any) -> Any:
        if not isinstance(batch, dict):
            return batch
        columns: Batch = batch
        return {name: self._field(name, value) for name, value in columns.items()}

    def _field(self, name: str, value: Any) -> Any:
        if isinstance(value, list):
            values: list[Any] = value
            return [_local(item) for item in values]
        sharding = self._sharding.get(name) if isinstance(self._sharding, Mapping) else self._sharding
        if sharding is None or name in _NOT_ROWS or not _is_array(value):
            return _local(value)
        shape = (value.shape[0] * self.world, *value.shape[1:])
        return jax.make_array_from_process_local_data(_cut(sharding, value.ndim), value, shape)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and value.ndim > 0


def _local(value: Any) -> Any:
    return jax.numpy.asarray(value) if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" else value


def _cut(sharding: Any, dimensions: int) -> Any:
    """Return a named sharding without the dimensions that a field doesn't have."""
    if not isinstance(sharding, jax.sharding.NamedSharding) or len(sharding.spec) <= dimensions:
        return sharding
    spec = jax.sharding.PartitionSpec(*sharding.spec[:dimensions])
    return jax.sharding.NamedSharding(sharding.mesh, spec)
