"""Input of a loader for datasets that are read lane by lane; its state is the place of each lane."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._digest import digest
from penstock._secrets import logger
from penstock.compat.energon.reading import Ahead
from penstock.compat.energon.walks import Lane, Place, SavableDataset, Unsavable, Walk, again, decode, encode
from penstock.compat.energon.work import set_restore_key
from penstock.compat.energon.worker import WorkerConfig, batch_index
from penstock.errors import ConfigError, ResumeMismatch
from penstock.load.processes import ProcessWorkers
from penstock.load.workers import NoWorkers, ThreadWorkers, Wait, Workers

_log = logger("penstock.energon")


@dataclass(frozen=True, slots=True)
class At:
    """Progress of a lane.

    Attributes:
        batches: number of batches delivered.
        ended: whether its pass has ended.
        place: place from which it resumes.
    """

    batches: int
    ended: bool
    place: Place


@dataclass(frozen=True, slots=True)
class Given:
    """A sample or batch of a lane; the sample is None at the lane's end."""

    lane: int
    sample: Any
    at: At


@dataclass(frozen=True, slots=True)
class Lanes:
    """Lanes of a rank.

    Attributes:
        dataset: the dataset.
        count: number of lanes of all ranks.
        seed: seed of the run.
        ats: lane → its progress.
    """

    dataset: SavableDataset[Any]
    count: int
    seed: int
    ats: Mapping[int, At]

    def lane(self, number: int) -> Lane:
        own = sorted(self.ats)
        return Lane(number, self.count, self.seed, own.index(number), len(own))

    def turn(self, numbers: Iterable[int], ats: Mapping[int, At]) -> int | None:
        """Return the lane whose turn it is: the first of the unended lanes with the fewest batches."""
        going = [(ats[number].batches, number) for number in numbers if not ats[number].ended]
        return min(going)[1] if going else None

    def index(self, number: int, batches: int) -> int:
        """Return a number for the lane's next batch; these numbers are consecutive on this rank."""
        own = sorted(self.ats)
        return batches * len(own) + own.index(number)


@dataclass(frozen=True, slots=True)
class Shares:
    """Worker w of W walks every W-th lane of the rank: a `Producer`."""

    lanes: Lanes
    workers: int

    def own(self, worker: int) -> list[int]:
        return sorted(self.lanes.ats)[worker :: self.workers]

    def __call__(self, worker: int, wait: Wait, /) -> Generator[Given]:
        del wait
        own, ats = self.own(worker), dict(self.lanes.ats)
        walks = {number: Walk(self.lanes.dataset, self.lanes.lane(number), ats[number].place) for number in own}
        while (number := self.lanes.turn(own, ats)) is not None:
            at, walk = ats[number], walks[number]
            before = walk.place
            try:
                with batch_index(self.lanes.index(number, at.batches)):
                    sample = next(walk)
            except StopIteration:
                ats[number] = At(at.batches, True, walk.end)
                yield Given(number, None, ats[number])
                continue
            ats[number] = At(at.batches + 1, False, walk.place)
            if not isinstance(before, Unsavable):
                set_restore_key(sample, ("walk", number, self.lanes.count, at.batches, before))
            yield Given(number, sample, ats[number])

    def place(self, worker: int, made: int, /) -> str:
        return f"batch {made} of lanes {', '.join(map(str, self.own(worker)))}"


class Walked:
    """Batches of a dataset that is read lane by lane, from its current place on.

    Args:
        dataset: the dataset.
        ahead: limits on reading ahead.
    """

    def __init__(self, dataset: SavableDataset[Any], ahead: Ahead) -> None:
        self._dataset = dataset
        self._config: WorkerConfig = dataset.worker_config
        self._ahead = ahead
        self._closed = False
        self._running: Workers | None = None
        self.number = 0
        self._lanes = self._begun(0)

    @property
    def started(self) -> bool:
        return self._running is not None

    def next(self) -> tuple[Any, NDArray[np.bool_]]:
        """Return the next batch, and that all of its samples count; StopIteration at the end of a pass."""
        if self._closed:
            raise ConfigError("the loader is closed")
        shares = Shares(self._lanes, self._threads)
        if self._running is None:
            self._running = self._start(shares)
        own = sorted(self._lanes.ats)
        while (number := self._lanes.turn(own, self._lanes.ats)) is not None:
            given: Given = self._running.take(own.index(number) % shares.workers)
            self._lanes = replace(self._lanes, ats={**self._lanes.ats, given.lane: given.at})
            if not given.at.ended:
                return given.sample, np.ones(_samples(given.sample), np.bool_)
        raise StopIteration

    def at_end(self) -> bool:
        return all(at.ended for at in self._lanes.ats.values())

    def begin(self, number: int) -> None:
        """Restart the data if `number` is 0; else begin the next pass, in which ended lanes continue."""
        self._stop()
        self.number = number
        if not number:
            self._lanes = self._begun(0)
            return
        most = max(at.batches for at in self._lanes.ats.values())
        self._lanes = replace(self._lanes, ats={one: At(most, False, at.place) for one, at in self._lanes.ats.items()})

    def close(self) -> None:
        self._closed = True
        self._stop()

    def state(self) -> dict[str, Any]:
        places = [[one, at.batches, int(at.ended), encode(at.place)] for one, at in sorted(self._lanes.ats.items())]
        data = digest("walk", self._dataset.identity())
        return {"pass": self.number, "walk": {"lanes": self._lanes.count, "data": data, "places": places}}

    def restore(self, state: Mapping[str, Any], handed: int, accept: Sequence[str]) -> None:
        """Resume from a place, on any number of ranks.

        Raises:
            ResumeMismatch: the place belongs to other data, or lacks lanes of this rank.
        """
        del handed
        saved = state["walk"]
        if saved["data"] != digest("walk", self._dataset.identity()):
            if "recipe" not in accept:
                hint = "Build the dataset in the same way, or pass accept=('recipe',)"
                raise ResumeMismatch("the state comes from another dataset", hint=hint)
            _log.warning("the state comes from another dataset; its positions are used")
        ats = {int(one): At(int(count), bool(ended), decode(place)) for one, count, ended, place in saved["places"]}
        self._stop()
        self.number = int(state["pass"])
        self._lanes = self._shared(ats, int(saved["lanes"]))

    def restore_sample(self, key: Any) -> Any:
        _, number, count, batches, place = key
        lanes = self._lanes
        at = decode(place)
        turns = max(1, len(lanes.ats))
        lane = Lane(int(number), int(count), lanes.seed, int(number) // self._config.world_size % turns, turns)
        with batch_index(int(batches) * turns + lane.turn):
            sample = again(self._dataset, lane, at)
        set_restore_key(sample, ("walk", int(number), int(count), int(batches), at))
        return sample

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _threads(self) -> int:
        return max(1, min(self._config.num_workers, len(self._lanes.ats)))

    def _begun(self, batches: int) -> Lanes:
        count = self._config.world_size * max(1, self._config.num_workers)
        own = range(self._config.rank, count, self._config.world_size)
        return Lanes(self._dataset, count, self._config.seed_offset, {one: At(batches, False, None) for one in own})

    def _shared(self, ats: Mapping[int, At], count: int) -> Lanes:
        """Return this rank's lanes of a state; if there are fewer lanes than ranks, several ranks share one."""
        world, rank = self._config.world_size, self._config.rank
        parts = -(-world // count)
        if parts > 1:
            ats = {
                one + count * part: replace(at, place=self._dataset.split(at.place, part, parts))
                for one, at in ats.items()
                for part in range(parts)
            }
        own = range(rank, count * parts, world)
        missing = [one for one in own if one not in ats]
        if missing:
            hint = "The state of each rank only has its own lanes: merge them with join_states or save_state_global"
            found = f"lanes {', '.join(map(str, sorted(ats)))}"
            expected = f"lanes {', '.join(map(str, own))}"
            raise ResumeMismatch("the state lacks lanes of this rank", found=found, expected=expected, hint=hint)
        return Lanes(self._dataset, count * parts, self._config.seed_offset, {one: ats[one] for one in own})

    def _start(self, shares: Shares) -> Workers:
        if self._config.num_workers == 0:
            return NoWorkers(shares)
        ahead = self._ahead
        if ahead.kind == "processes":
            return ProcessWorkers(shares, shares.workers, ahead.prefetch, ahead.timeout_seconds)
        return ThreadWorkers(shares, shares.workers, ahead.prefetch, ahead.timeout_seconds)

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.close()


def _samples(batch: Any) -> int:
    keys = batch.get("__key__") if isinstance(batch, dict) else getattr(batch, "__key__", None)
    return len(keys) if isinstance(keys, (list, tuple)) else 1
