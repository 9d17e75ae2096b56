"""Several processes that write one output at the same time, in every format."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from tests.store.rivals import FORMATS, OPTIONS, output_of, samples_of, write

import penstock as ps
from penstock.errors import ConfigError, PrepareError
from penstock.testing.datasets import files_in

WRITERS, ROUNDS = 3, 6


def compete(name: str, format: str, root: Path, overwrite: bool, barrier: Barrier, said: Any) -> None:
    for number in range(ROUNDS):
        path = output_of(root / str(number), format)
        barrier.wait(60)
        try:
            with ps.create(path, format=format, overwrite=overwrite, **OPTIONS[format]) as writer:
                for sample in samples_of(format, name):
                    writer.write(sample)
            said.put((number, name, "wrote"))
        except (PrepareError, ConfigError) as error:
            said.put((number, name, type(error).__name__))
        except BaseException as error:
            said.put((number, name, repr(error)))


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_one_whole_dataset_stands_and_every_other_writer_is_told(tmp_path: Path, format: str, overwrite: bool) -> None:
    for number in range(ROUNDS):
        (tmp_path / str(number)).mkdir()
        if overwrite:
            write(output_of(tmp_path / str(number), format), format, "old")
    context = multiprocessing.get_context("fork")
    barrier, said = context.Barrier(WRITERS), context.SimpleQueue()
    names = [f"writer{k}" for k in range(WRITERS)]
    processes = [
        context.Process(target=compete, args=(name, format, tmp_path, overwrite, barrier, said)) for name in names
    ]
    for process in processes:
        process.start()
    told = [said.get() for _ in range(WRITERS * ROUNDS)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    whole: dict[str, dict[str, bytes]] = {}
    for name in names:
        (tmp_path / name).mkdir()
        write(output_of(tmp_path / name, format), format, name)
        whole[name] = files_in(tmp_path / name)
    assert {what for _, _, what in told} <= {"wrote", "PrepareError", "ConfigError"}, told
    for number in range(ROUNDS):
        wrote = [name for n, name, what in told if n == number and what == "wrote"]
        assert wrote, "somebody has to come through"
        assert len(wrote) == 1 or overwrite
        found = files_in(tmp_path / str(number))
        assert any(found == whole[name] for name in wrote), sorted(found)
        assert sorted(os.listdir(tmp_path / str(number))) == sorted(os.listdir(tmp_path / wrote[0]))
