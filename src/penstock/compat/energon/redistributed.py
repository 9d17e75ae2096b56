"""`energon checkpoint redist`: the states of a run's ranks, in as many files as another run has ranks."""

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
from penstock.compat.energon.loader import join_states
from penstock.errors import ConfigError, FormatError, TooLarge, UnsafeData
from penstock.store.outputs import claimed, output_path, require_other
from penstock.store.place import Place
from penstock.store.put import put

_INSIDE = "dataloader_state_dict"
"""Under which key Megatron's own files hold the state."""


def redistribute(files: Sequence[Place], folder: Place, ranks: int) -> list[str]:
    """Write a state of the whole run for each rank of another run.

    States fit any world size once those of all ranks are joined, so each file holds the same. Files are named as those
    given are: by the one number in which their names differ.

    Existing states are replaced, as in the original.

    Args:
        files: files of `torch.save`: one per rank, or one for all ranks.
        folder: another one than that of the files.
        ranks: number of ranks of the other run.

    Returns:
        The names of the files.

    Raises:
        FormatError: a file holds no state of this package's loader.
        ResumeMismatch: states of several runs.
        ConfigError: names without one number that counts the ranks, or an output that is an input or another file.
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
