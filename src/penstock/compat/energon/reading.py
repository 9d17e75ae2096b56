"""Input of a loader: an endless stream, or one pass after another; its state is a few numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from penstock._digest import digest
from penstock._secrets import logger
from penstock.compat.energon.build import EnergonDataset
from penstock.compat.energon.opening import typed_below
from penstock.compat.energon.passes import BatchMaker, CutPass, Pass
from penstock.compat.energon.stages import Lanes
from penstock.compat.energon.states import unknown_place
from penstock.cook import Crude
from penstock.errors import ResumeMismatch
from penstock.load import Loader
from penstock.load.batches import Batches
from penstock.load.describe import describe
from penstock.load.state import decode
from penstock.load.workers import WorkerKind

_log = logger("penstock.energon")
_OF_DECODING = ("decode", "decode_parts", "trust", "most_pixels", "most_bytes", "frames", "sound")


@dataclass(frozen=True, slots=True)
class Ahead:
    """Limits on reading ahead; see `penstock.Loader`."""

    prefetch: int
    kind: WorkerKind
    timeout_seconds: float | None


class Reading:
    """Batches of a dataset from its current place on, read by a `Loader`.

    Args:
        dataset: the dataset.
        maker: makes its batches.
        ahead: limits on reading ahead.

    Attributes:
        number: number of the pass.
        loader: the loader below.
    """

    def __init__(self, dataset: EnergonDataset, maker: BatchMaker, ahead: Ahead) -> None:
        self._dataset = dataset
        self._maker = maker
        self._ahead = ahead
        self._closed = False
        self._iterator: Batches | None = None
        self._accepted: list[Any] = []
        self.begin(0)

    @property
    def started(self) -> bool:
        return self._iterator is not None

    def next(self) -> tuple[Any, NDArray[np.bool_]]:
        """Return the next batch, and which samples count; StopIteration at the end of a pass."""
        if self._iterator is None:
            self._iterator = iter(self.loader)
        return next(self._iterator)

    def at_end(self) -> bool:
        return self._dataset.size is not None and self.loader.step == len(self.loader)

    def begin(self, number: int) -> None:
        self._stop()
        self.number = number
        self._read(0, 0)

    def close(self) -> None:
        self._closed = True
        self.loader.close()

    def state(self) -> dict[str, Any]:
        data = {"pass": self.number, "data": self._data()}
        if self._dataset.size is None:
            return {**data, "loader": self.loader.state_dict()}
        state = self._book(self._first + self._cut.shares.taken(self.loader.step)).state_dict()
        return {**data, "loader": {**state, **({"accepted": self._accepted} if self._accepted else {})}}

    def restore(self, state: Mapping[str, Any], handed: int, accept: Sequence[str]) -> None:
        """Resume from a place.

        Raises:
            ResumeMismatch: the place belongs to other data.
        """
        self._stop()
        self.number = int(state["pass"])
        if self._dataset.size is None:
            self.loader = self._made(self._dataset.data, self._samples * self._dataset.worker_config.world_size, None)
            self.loader.load_state_dict(self._of_encoder(state, self._dataset.data), accept)
            return
        book = self._book(0)
        book.load_state_dict(self._of_encoder(state, self._whole), accept)
        self._accepted = book.state_dict().get("accepted", [])
        self._read(book.consumed, handed)

    def go_on_after(self, samples: int) -> int:
        """Resume after a number of samples of all ranks; return the number of batches of this rank among them.

        Raises:
            ResumeMismatch: the data ends before, or samples are packed or grouped, so their number isn't a place.
        """
        dataset = self._dataset
        if dataset.size is not None or dataset.grouped or isinstance(dataset.data, Lanes):
            raise unknown_place()
        self._stop()
        self.number = 0
        step = self._samples * dataset.worker_config.world_size
        self.loader = self._made(dataset.data, step, None, samples)
        return samples // step

    def _of_encoder(self, state: Mapping[str, Any], data: Any) -> dict[str, Any]:
        """Accept the state of another task encoder over the same data, as Energon does."""
        saved = dict(state["loader"])
        here = describe(data, decode(saved).consumed)  # which children count depends on how far was read
        own: dict[str, Any] = {"recipe": here.recipe, "children": dict(here.children)}
        if {name: saved[name] for name in own} != own and state.get("data") == self._data():
            _log.warning("the state comes from another task encoder: the same samples continue, encoded by this one")
            saved |= own
        return saved

    def _data(self) -> str:
        """Digest of the data before it is decoded and encoded."""
        dataset = self._dataset
        stored = list(map(_stored, dataset.sources))
        return digest("data", _undecoded(dataset.stream.recipe()), stored, dataset.packing)

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _samples(self) -> int:
        dataset = self._dataset
        return 1 if dataset.grouped or dataset.batch_size is None else dataset.batch_size

    @property
    def _whole(self) -> Pass:
        size = self._dataset.size
        if size is None:
            raise ResumeMismatch("endless data has no passes")
        return Pass(self._dataset.filled(), size, self.number)

    def _read(self, first: int, handed: int) -> None:
        size, world = self._dataset.size, self._dataset.worker_config.world_size
        if size is None:
            self.loader = self._made(self._dataset.data, self._samples * world, None)
            return
        before = handed + (self.number * len(self._dataset.shares(size)) if not self._dataset.starts_anew else 0)
        self._first = first
        self._cut = CutPass(self._whole, first, before, self._dataset.shares(size - first))
        self.loader = self._made(self._cut, world, "drop")

    def _book(self, consumed: int) -> Loader:
        """Return a loader that only tracks the positions of a pass."""
        config, tail = self._dataset.worker_config, "drop" if self._dataset.batch_drop_last else "pad"
        step = self._samples * config.world_size
        shape: dict[str, Any] = {"rank": config.rank, "world": config.world_size, "workers": 0}
        return Loader(self._whole, step, start=consumed, tail=tail, **shape)

    def _made(self, data: Any, global_batch: int, tail: Any, start: int = 0) -> Loader:
        config = self._dataset.worker_config
        loader = Loader(
            data,
            global_batch,
            start=start,
            rank=config.rank,
            world=config.world_size,
            workers=config.num_workers,
            prefetch=self._ahead.prefetch,
            worker_kind=self._ahead.kind,
            timeout_seconds=self._ahead.timeout_seconds,
            tail=tail,
            collate=self._maker,
        )
        if self._closed:
            loader.close()
        return loader

    def _stop(self) -> None:
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator.close()


def _stored(source: Any) -> str:
    """Digest of the samples of a dataset before they are decoded."""
    typed = typed_below(source)
    below = source.source if isinstance(source, Crude) else source
    return below.fingerprint if typed is None else typed.undecoded


def _undecoded(recipe: Any) -> Any:
    """Return a recipe without the decoding of its crude samples."""
    if isinstance(recipe, Mapping):
        node = cast(Mapping[str, Any], recipe)
        left_out = _OF_DECODING if node.get("kind") == "crude" else ()
        return {name: _undecoded(one) for name, one in node.items() if name not in left_out}
    return [_undecoded(one) for one in cast(Sequence[Any], recipe)] if isinstance(recipe, (list, tuple)) else recipe
