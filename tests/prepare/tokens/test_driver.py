"""What the process that drives the work does itself: no reading of inputs; and who compares the engines' answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.prepare.conftest import write_lines

from penstock.errors import PrepareError
from penstock.prepare import pack
from penstock.prepare.tokens import encode, engines, inputs, tokenize
from penstock.prepare.tokens.engines import load_engine
from penstock.store.local import LocalStore

LINE = "a few words of which a line of text is made, 0123456789. "


def write(path: Path, lines: int) -> Path:
    return write_lines(path, [{"text": f"{number} {LINE * 20}"} for number in range(lines)])


class Elsewhere:
    """An executor whose tasks count as those of another machine."""

    at_work = False

    def map(self, fn: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for task in tasks:
            self.at_work = True
            try:
                found = fn(task)
            finally:
                self.at_work = False
            yield found


def test_the_driver_reads_no_more_of_ten_times_as_much(
    tmp_path: Path, bpe2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, found = Elsewhere(), list[int]()

    def count(name: str) -> None:
        right = getattr(LocalStore, name)

        def call(*given: Any, **more: Any) -> Any:
            data = right(*given, **more)
            if not elsewhere.at_work:
                found.append(sum(map(len, data)) if isinstance(data, list) else len(data))
            return data

        monkeypatch.setattr(LocalStore, name, call)

    for name in ("get", "get_ranges", "mmap"):
        count(name)
    monkeypatch.setattr(inputs, "_READ_BYTES", 1 << 12)  # larger files are digested by workers
    costs: list[int] = []
    for lines in (200, 2_000):
        path = write(tmp_path / f"{lines}.jsonl", lines)
        found.clear()
        how: dict[str, Any] = {"tokenizer": bpe2, "executor": elsewhere, "task_bytes": 1 << 16, "oracle_bytes": 500}
        pack(path, f"{tmp_path}/out-{lines}/", **how)
        costs.append(sum(found))
    # What is sampled, 64 KiB at 64 places, is nearly all of it.
    assert costs[1] - costs[0] < path.stat().st_size / 4, costs


def wrong_from(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """An engine that is confirmed, and gives other ids from a part on."""
    right, begun = engines.GigatokenEngine.encode, list[int]()
    encode_part = tokenize._encode_part

    def counting(job: Any, task: Any) -> Any:
        begun.append(task.number)
        return encode_part(job, task)

    def encode(self: Any, texts: Sequence[bytes]) -> Any:
        ids, lengths = right(self, texts)
        return (ids if not begun or begun[-1] < first else np.zeros_like(ids)), lengths

    load_engine.cache_clear()
    monkeypatch.setattr(tokenize, "_encode_part", counting)
    monkeypatch.setattr(engines.GigatokenEngine, "encode", encode)


@pytest.mark.parametrize(("first", "by_worker"), [(3, False), (18, True)])
def test_an_engine_that_goes_wrong_is_found(
    tmp_path: Path, bpe2: Path, monkeypatch: pytest.MonkeyPatch, first: int, by_worker: bool
) -> None:
    path = write(tmp_path / "a.jsonl", 40)
    wrong_from(monkeypatch, first)
    if by_worker:
        monkeypatch.setattr(encode, "find_disagreement", lambda *given: None)
    with pytest.raises(PrepareError, match=r"a\.jsonl: gigatoken and the tokenizer's own library disagree.*--restart"):
        pack(path, f"{tmp_path}/out/", tokenizer=bpe2, executor="inline", task_bytes=2000, oracle_bytes=500)
    load_engine.cache_clear()


def test_the_first_part_of_each_worker_is_compared_by_the_driver(
    tmp_path: Path, bpe2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.jsonl", 40)
    wrong_from(monkeypatch, 18)
    workers = (f"host-{number}:1" for number in range(1000))
    monkeypatch.setattr(tokenize, "_worker", lambda: next(workers))  # each makes one part, and finds nothing wrong
    monkeypatch.setattr(tokenize, "find_disagreement", lambda *given: None)
    with pytest.raises(PrepareError, match="own library disagree"):
        pack(path, f"{tmp_path}/out/", tokenizer=bpe2, executor="inline", task_bytes=2000, oracle_bytes=500)
    load_engine.cache_clear()


def test_parts_of_others_are_compared_when_files_are_made(
    tmp_path: Path, bpe2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.jsonl", 40)
    how: dict[str, Any] = {"tokenizer": bpe2, "executor": "inline", "task_bytes": 2000, "oracle_bytes": 500}
    with pytest.MonkeyPatch.context() as there:
        wrong_from(there, 0)
        there.setattr(tokenize, "find_disagreement", lambda *given: None)
        there.setattr(encode, "find_disagreement", lambda *given: None)
        pack(path, f"{tmp_path}/out/", **how, part=(0, 2))
    load_engine.cache_clear()
    with pytest.raises(PrepareError, match="own library disagree"):
        pack(path, f"{tmp_path}/out/", **how, finish=True)


def test_a_dry_run_knows_the_inputs_of_unfinished_work(
    tmp_path: Path, bpe2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_READ_BYTES", 1 << 10)
    path = write(tmp_path / "a.jsonl", 40)
    how: dict[str, Any] = {"tokenizer": bpe2, "executor": "inline", "task_bytes": 9000, "oracle_bytes": 500}
    pack(path, f"{tmp_path}/out/", **how, part=(0, 2))
    os.utime(path, (5, 5))  # touched, and the same
    assert pack(path, f"{tmp_path}/out/", **how, dry_run=True).input_files == 1
