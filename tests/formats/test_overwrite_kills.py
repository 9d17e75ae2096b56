"""Datasets that replace others of the same size and with the same first and last tokens, killed at every step.

Readers must see the old dataset or the new one: never the tokens of one with the side file or the planes of the other.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps

STEPS = ("os.rename", "os.remove", "os.link", "os.rmdir", "os.mkdir")
FORMATS = {"pbin": "a.pbin", "megatron": "a", "flat-tokens": "a.zarr"}


def write(path: Path, format: str, marked: int, *, planes: bool, overwrite: bool = False) -> None:
    """200 documents of 100 tokens; only token 50 of document 100, the mask of this document and the EOS id differ."""
    documents = [np.arange(100) % 50 + 1 for _ in range(200)]
    documents[100][50] = marked
    options: dict[str, Any] = {"chunk_tokens": 8192} if format == "flat-tokens" else {"token_bytes": 2}
    options |= {"planes": {"loss_mask": "bool"}} if planes else {}
    with ps.create(path, format=format, overwrite=overwrite, eos_id=marked, **options) as writer:
        for index, document in enumerate(documents):
            mask = np.full(100, index != 100 or marked == 60)
            writer.write({"tokens": document} | ({"loss_mask": mask} if planes else {}))


def seen(path: Path) -> tuple[int, int, bool | None]:
    """The token that differs, the recorded EOS id, and the mask of the document."""
    source = ps.open(path)
    sample = source[100]
    mask = bool(sample["loss_mask"][0]) if "loss_mask" in sample else None
    return int(sample["tokens"][50]), source.eos_id, mask


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Run `work` in a process that ends before file operation number `step`; whether it did."""
    child = os.fork()
    if child == 0:
        count = 0

        def hook(event: str, args: tuple[Any, ...]) -> None:
            nonlocal count
            if event in STEPS or (event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)):
                count += 1
                if count == step:
                    os._exit(9)

        sys.addaudithook(hook)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


@pytest.mark.parametrize(("before", "after"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("format", ["pbin", "megatron", "flat-tokens"])
def test_readers_see_the_old_dataset_or_the_new_one(format: str, before: bool, after: bool, tmp_path: Path) -> None:
    old, new = (60, 60, True if before else None), (61, 61, False if after else None)
    path = tmp_path / "d" / FORMATS[format]
    step, outcomes = 1, set[bool]()
    while True:
        path.parent.mkdir()
        write(path, format, 60, planes=before)
        is_killed = killed_at(step, lambda: write(path, format, 61, planes=after, overwrite=True))
        found = seen(path)
        assert found in (old, new), step
        outcomes.add(found == new)
        # Repairing what a killed writer left doesn't mix them either, nor does the same command again.
        ps.repair(path, write=True)
        assert seen(path) == found, step
        write(path, format, 61, planes=after, overwrite=True)
        assert seen(path) == new, step
        if not is_killed:
            break
        shutil.rmtree(path.parent)
        step += 1
    assert [finding for finding in ps.verify(path, depth="full") if finding.severity == "error"] == []
    assert outcomes == {False, True}
