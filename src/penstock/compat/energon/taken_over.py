"""States that Megatron-Energon's own loader saved: how far its run had read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from penstock.errors import ResumeMismatch

_CLASS = "SavableDataLoaderState"


def originals_of(state: Any) -> list[Any]:
    """Return the rank states in a state of the original, for one rank or all; none if it isn't the original's."""
    ranks = list(cast(Sequence[Any], state)) if isinstance(state, (list, tuple)) else [state]
    ours = any(type(one).__name__ != _CLASS or not hasattr(one, "worker_states") for one in ranks)
    return [] if ours else ranks


def samples_read(ranks: Sequence[Any], accept: Sequence[str]) -> int:
    """Return the number of samples that all ranks of the original's run had read.

    Args:
        ranks: the state of each rank.
        accept: must include `"order"`, because the original's order differs, and only the number of samples is known.

    Raises:
        ResumeMismatch: `"order"` isn't accepted, or the number of samples is unknown.
    """
    sizes = {one.micro_batch_size for one in ranks}
    size = sizes.pop() if len(sizes) == 1 else None
    if not isinstance(size, int) or size < 1:
        what = "a state of Megatron-Energon without a fixed batch size: it doesn't record how many samples were read"
        raise ResumeMismatch(what, hint="Start again; its samples will be repeated")
    batches = sum(_batches(worker) for one in ranks for worker in one.worker_states)
    read = batches * size
    if "order" not in accept:
        raise ResumeMismatch(
            "a state of Megatron-Energon's own loader, which reads in a different order",
            found=f"{batches:,} batches of {size}",
            hint=f"accept=['order'] resumes after {read:,} samples: in the current pass some samples are repeated and "
            "others skipped, and random numbers differ; no whole pass is lost",
        )
    return read


def unknown_place() -> ResumeMismatch:
    what = "a state of Megatron-Energon's own loader: its position in a finite pass, in packs, groups or wrappers"
    return ResumeMismatch(f"{what} is unknown here", hint="Start again; its samples will be repeated")


def _batches(worker: Any) -> int:
    """Return the batches of a worker: its own, or the last snapshot's and those since then."""
    inside: Any = worker if isinstance(worker, Mapping) else worker.state
    if isinstance(inside, Mapping):
        numbers = [cast(Mapping[str, Any], inside).get("_sample_index")]
    else:
        numbers = [0 if inside is None else inside.sample_index, cast(Any, worker).offset]
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ResumeMismatch("a state of Megatron-Energon without a position", found=repr(numbers)[:80])
    return sum(cast("list[int]", numbers))
