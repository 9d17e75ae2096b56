"""States that Megatron-Energon's own loader saved: how far its run had read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from penstock.errors import ResumeMismatch

_CLASS = "SavableDataLoaderState"


def originals_of(state: Any) -> list[Any]:
    """The states of ranks that `state` holds, where it is the original's, of one rank or of all; else none."""
    ranks = list(cast(Sequence[Any], state)) if isinstance(state, (list, tuple)) else [state]
    ours = any(type(one).__name__ != _CLASS or not hasattr(one, "worker_states") for one in ranks)
    return [] if ours else ranks


def samples_read(ranks: Sequence[Any], accept: Sequence[str]) -> int:
    """Samples of all ranks that the original's run had read.

    Args:
        ranks: the state of each rank.
        accept: `"order"` must be in it: the original's order is another one, so its place is a number alone.

    Raises:
        ResumeMismatch: `"order"` is not accepted, or the number of samples can't be known.
    """
    sizes = {one.micro_batch_size for one in ranks}
    size = sizes.pop() if len(sizes) == 1 else None
    if not isinstance(size, int) or size < 1:
        what = "a state of Megatron-Energon whose batches have no fixed size: how many samples it read is not in it"
        raise ResumeMismatch(what, hint="Begin anew; what its run read comes again")
    batches = sum(_batches(worker) for one in ranks for worker in one.worker_states)
    read = batches * size
    if "order" not in accept:
        raise ResumeMismatch(
            "a state of Megatron-Energon's own loader, which reads in another order",
            found=f"{batches:,} batches of {size}",
            hint=f"accept=['order'] goes on after {read:,} samples: of the pass under way samples come again "
            "and others are left out, and random numbers are others; no whole pass is lost",
        )
    return read


def unknown_place() -> ResumeMismatch:
    """The error for data in which a number of samples is no place."""
    what = "a state of Megatron-Energon's own loader: its place in a pass that ends, in packs, in groups or in wrappers"
    return ResumeMismatch(f"{what} is unknown here", hint="Begin anew; what its run read comes again")


def _batches(worker: Any) -> int:
    """Batches that a worker gave: of one that is the process itself, or the last snapshot's and those since then."""
    inside: Any = worker if isinstance(worker, Mapping) else worker.state
    if isinstance(inside, Mapping):
        numbers = [cast(Mapping[str, Any], inside).get("_sample_index")]
    else:
        numbers = [0 if inside is None else inside.sample_index, cast(Any, worker).offset]
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ResumeMismatch("a state of Megatron-Energon that does not say how far it was", found=repr(numbers)[:80])
    return sum(cast("list[int]", numbers))
