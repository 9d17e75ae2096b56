"""Saved states: those of all ranks, of files for another number of ranks, and of Megatron-Energon's own loader."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

from penstock._limits import MOST_UNPACKED_BYTES
from penstock._optional import require
from penstock.codec.tensor_files import decode_tensor_file
from penstock.errors import ConfigError, FormatError, ResumeMismatch, TooLarge, UnsafeData
from penstock.load import merge_states
from penstock.store.outputs import claimed, output_path, require_other
from penstock.store.place import Place
from penstock.store.put import put

_CLASS = "SavableDataLoaderState"


def join_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the states of all ranks to one for any world size."""
    first = states[0]
    if "walk" not in first:
        return {**first, "loader": merge_states([state["loader"] for state in states])}
    walks = [state["walk"] for state in states]
    if any(one["lanes"] != walks[0]["lanes"] or one["data"] != walks[0]["data"] for one in walks):
        raise ResumeMismatch("the states come from different runs")
    return {**first, "walk": {**walks[0], "places": sorted(place for one in walks for place in one["places"])}}


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


_INSIDE = "dataloader_state_dict"
"""Key of the state in Megatron's own files."""


def redistribute(files: Sequence[Place], folder: Place, ranks: int) -> list[str]:
    """Write a state of the whole run for each rank of another run: `energon checkpoint redist`.

    A joined state fits any world size, so all files are the same. Their names differ from those of `files` only in the
    number of the rank. Existing states are replaced, as in the original.

    Args:
        files: files of `torch.save`: one per rank, or one for all ranks.
        folder: a folder without any of the files.
        ranks: number of ranks of the other run.

    Returns:
        The names of the files.

    Raises:
        FormatError: a file isn't a state of this package's loader.
        ResumeMismatch: the states come from several runs.
        ConfigError: the files aren't numbered by rank, or an output is an input or another file.
    """
    if ranks < 1:
        raise ConfigError("a run needs at least one rank", found=ranks)
    torch: Any = require("torch", extra="torch")
    ordered = sorted(files, key=lambda file: _words(file.name)[1])
    names = _names([file.name for file in ordered], ranks)
    read = [_read(file) for file in ordered]
    joined = join_states([state for state, _ in read])
    out = io.BytesIO()
    torch.save({_INSIDE: joined} if read[0][1] else joined, out)
    paths = [output_path(folder.store, folder.child(name).path) for name in names]
    for path in paths:
        require_other([file.path for file in ordered], path)
    with claimed(folder.store, *paths):
        for path in paths:
            if folder.store.exists(path) and not _is_state(Place(folder.store, path)):
                what = "the output exists and is not a state of this loader"
                raise ConfigError(what, path=path, hint="Choose another folder, or remove the file")
        for path in paths:
            put(folder.store, path, out.getvalue())
    return names


def _read(file: Place) -> tuple[Mapping[str, Any], bool]:
    """Return the state in a file, and whether it is under a key."""
    data = file.store.get(file.path)
    try:
        state = decode_tensor_file(data, MOST_UNPACKED_BYTES)
    except (UnsafeData, TooLarge, ValueError, RuntimeError, EOFError, zipfile.BadZipFile) as error:
        hint = "Use files from torch.save(loader.save_state_rank(), file), not files from Megatron-Energon's own loader"
        raise FormatError("not a state of this loader", path=file.path, found=str(error)[:60], hint=hint) from error
    inside = isinstance(state, dict) and _INSIDE in state
    state = cast(Any, state)[_INSIDE] if inside else state
    if not isinstance(state, Mapping) or not {"walk", "loader"} & state.keys():
        raise FormatError("not a state of this loader", path=file.path, found=repr(cast(object, state))[:60])
    return cast(Mapping[str, Any], state), inside


def _is_state(file: Place) -> bool:
    try:
        _read(file)
    except FormatError:
        return False
    return True


def _words(name: str) -> tuple[list[str], list[int]]:
    """Split a name into text and numbers."""
    parts = re.split(r"([0-9]+)", name)
    return parts[::2], [int(number) for number in parts[1::2]]


def _names(names: Sequence[str], ranks: int) -> list[str]:
    """Return names for `count` ranks, numbered like the given ones."""
    if len(names) == 1 and ranks == 1:
        return list(names)
    words = [_words(name) for name in names]
    numbers = [own for _, own in words]
    last = len(numbers[0]) - 1
    differ = [at for at in range(last + 1) if any(own[at : at + 1] != numbers[0][at : at + 1] for own in numbers)]
    place = differ[0] if differ else last
    counted = [own[place] if place < len(own) else -1 for own in numbers] if place >= 0 else []
    same = all(parts == words[0][0] for parts, _ in words)
    if not same or len(differ) > 1 or not counted or any(second - first != 1 for first, second in pairwise(counted)):
        hint = "Name them after their ranks, such as state_rank0.pt, state_rank1.pt"
        raise ConfigError("the file names aren't numbered by rank", found=", ".join(names)[:120], hint=hint)
    parts = re.split(r"([0-9]+)", names[0])
    digits = len(parts[2 * place + 1])
    before, after = "".join(parts[: 2 * place + 1]), "".join(parts[2 * place + 2 :])
    return [f"{before}{counted[0] + rank:0{digits}}{after}" for rank in range(ranks)]
