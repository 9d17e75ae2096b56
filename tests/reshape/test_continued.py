"""A run in one process that was killed continues from its hidden files: the same command writes only the rest."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import internals

import penstock as ps
from penstock.errors import ConfigError
from penstock.store import LocalStore

NUM_ROWS = 4000
ROW_BYTES = 2000


class Counting:
    """The system, with the bytes that are written counted."""

    written_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, fd: int, data: Any) -> int:
        written = os.write(fd, data)
        self.written_bytes += written
        return written

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        written = os.pwrite(fd, data, offset)
        self.written_bytes += written
        return written

    def copy_file_range(self, *given: Any) -> int:
        copied = os.copy_file_range(*given)
        self.written_bytes += copied
        return copied

    def sendfile(self, *given: Any) -> int:
        copied = os.sendfile(*given)
        self.written_bytes += copied
        return copied


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    generator = np.random.default_rng(3)
    texts = [generator.integers(97, 122, ROW_BYTES, np.uint8).tobytes().decode() for _ in range(NUM_ROWS)]
    with (folder / "a.jsonl").open("w") as file:
        file.writelines(json.dumps({"n": n, "text": text}) + "\n" for n, text in enumerate(texts))
    with ps.create(folder / "a.pbin", format="pbin", token_bytes=2) as writer:
        for _ in range(NUM_ROWS):
            writer.write({"tokens": generator.integers(1, 60_000, ROW_BYTES // 2, np.uint16)})
        writer.commit()
    ps.convert(folder / "a.jsonl", folder / "a.mds", to="mds", size_limit=1 << 20)
    with ps.create(folder / "a.tars", format="webdataset") as writer:
        for n, text in enumerate(texts):
            writer.write({"__key__": f"{n:05d}", "txt": text})
        writer.commit()
    return folder


VERBS: dict[str, Callable[..., Any]] = {
    "filter a.jsonl": lambda a, b, **more: ps.filter(a, b, where="n % 10 != 0", **more),
    "filter a.pbin": lambda a, b, **more: ps.filter(a, b, min_tokens=3, **more),
    "filter a.mds": lambda a, b, **more: ps.filter(a, b, where="n % 10 != 0", **more),
    "merge a.jsonl": lambda a, b, **more: ps.merge([a, a], b, **more),
    "merge a.pbin": lambda a, b, **more: ps.merge([a, a], b, **more),
    "split a.jsonl": lambda a, b, **more: ps.split(a, b, ratio=(2, 1), **more),
    "split a.jsonl, parts": lambda a, b, **more: ps.split(a, b, parts=2, only=1, **more),
    "shuffle a.jsonl": lambda a, b, **more: ps.shuffle(a, b, memory_bytes=1 << 21, **more),
    "merge a.tars": lambda a, b, **more: ps.merge([a], b, maxcount=500, **more),
    "split a.tars": lambda a, b, **more: ps.split(a, b, ratio=(2, 1), maxcount=500, **more),
    "shuffle a.tars": lambda a, b, **more: ps.shuffle(a, b, maxcount=500, **more),
    "shuffle a.pbin": lambda a, b, **more: ps.shuffle(a, b, memory_bytes=1 << 21, **more),
}


def test_a_killed_run_continues(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    internals.replace(monkeypatch, "rows_run_bytes", 1 << 18)
    internals.replace(monkeypatch, "defaults_of_runs", (0, None, 1 << 18))
    internals.replace(monkeypatch, "digest_part_bytes", 1 << 18)
    for verb, do in VERBS.items():
        source = sources / verb.split(" ")[1].rstrip(",")
        folder = tmp_path / verb.replace(" ", "-")
        folder.mkdir()
        target = folder / f"out{source.suffix}"
        plain = Counting()
        do(source, folder / f"plain{source.suffix}", store=LocalStore(plain))
        if os.fork() == 0:

            def stop(done: int, _text: str) -> None:
                if done > NUM_ROWS * 3 // 8:
                    os._exit(9)

            do(source, target, progress=stop)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 9, verb
        again = Counting()
        do(source, target, store=LocalStore(again))
        assert again.written_bytes < 0.9 * plain.written_bytes, (verb, again.written_bytes, plain.written_bytes)
        found, expected = (sorted(p for p in folder.rglob(f"{name}*") if p.is_file()) for name in ("out", "plain"))
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            if not one.name.endswith(".penstock"):
                assert one.read_bytes() == other.read_bytes(), one
        assert [path for path in folder.iterdir() if path.name.startswith(".")] == []


LAST: dict[str, Callable[..., Any]] = {
    "filter": lambda a, b: ps.filter(a, b, where="n >= 0"),
    "merge": lambda a, b: ps.merge([a], b),
    "shuffle": lambda a, b: ps.shuffle(a, b),
    "split": lambda a, b: ps.split(a, b, ratio=(1, 1)),
    "convert": lambda a, b: ps.convert(a, b.with_suffix(".mds"), to="mds"),
}


@pytest.mark.parametrize("verb", LAST)
def test_an_output_of_changed_inputs_is_not_called_complete(verb: str, tmp_path: Path) -> None:
    """The run is killed right after its commit; then a line changes that no fingerprint samples."""
    source, target = tmp_path / "a.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"n": n, "text": "x" * 100}) + "\n" for n in range(1000)))
    unlink = os.unlink

    def ends(path: Any, *given: Any, **more: Any) -> None:
        is_done = str(path).endswith(".part") if verb == "convert" else internals.is_mark_or_lock(str(path))
        if is_done and list(tmp_path.glob("out*")):
            os._exit(9)
        unlink(path, *given, **more)

    for is_changed in (False, True):
        if os.fork() == 0:
            os.unlink = ends
            LAST[verb](source, target)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 9
        if not is_changed:
            LAST[verb](source, target)  # reports that it is complete
            for path in tmp_path.iterdir():
                if path != source:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            continue
        with source.open("r+b") as file:
            file.seek(source.stat().st_size // 3)
            file.seek(file.read(200).index(b"xxx") + source.stat().st_size // 3)
            file.write(b"y")
        if verb == "split":  # its parts are written again
            LAST[verb](source, target)
            assert sum("y" in sample["text"] for part in target.glob("*.jsonl") for sample in ps.open(part)) == 1
        else:
            with pytest.raises(ConfigError, match=r"exists|changed"):
                LAST[verb](source, target)


def test_nothing_of_another_commands_killed_run_is_published(sources: Path, tmp_path: Path) -> None:
    with ps.create(tmp_path / "tars", format="webdataset") as writer:
        for number in range(200):
            writer.write({"__key__": f"{number:03d}", "txt": "x" * 100})
    target = tmp_path / "out"
    if os.fork() == 0:

        def stop(done: int, _text: str) -> None:
            if done > 50:
                os._exit(9)

        ps.merge([tmp_path / "tars"], target, progress=stop)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 9
    left = [path for path in tmp_path.iterdir() if path.name.startswith(".out.")]
    assert left
    (left[0] / "empty" / "below").mkdir(parents=True)
    ps.filter(sources / "a.mds", target, where="n % 2 == 0")
    assert [path for path in target.iterdir() if path.is_dir()] == []
    ps.filter(sources / "a.mds", target, where="n % 3 == 0", overwrite=True)


def test_another_command_removes_what_an_interrupted_one_left(sources: Path, tmp_path: Path) -> None:
    """An interrupt leaves staged files for the same command; here one of another format writes the output."""

    def stop(done: int, _text: str) -> None:
        if done > NUM_ROWS * 3 // 8:
            raise KeyboardInterrupt

    for number, name in enumerate(("a.pbin", "a.mds")):
        target = tmp_path / str(number) / "out"
        if os.fork() == 0:
            try:
                ps.filter(sources / "a.jsonl", target, where="n % 2 == 0", to="jsonl", progress=stop)
            except KeyboardInterrupt:
                os._exit(9)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 9
        assert [path for path in target.parent.iterdir() if path.name.startswith(".out.idx.")]
        ps.filter(sources / name, target, indices=range(0, NUM_ROWS, 2))
        assert [path.name for path in target.parent.iterdir() if path.name.startswith(".")] == []


class EndsAtTheSecondPart:
    """The system, in which a process is killed just before the second part of a split becomes visible."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def rename(self, source: Any, target: Any, **given: Any) -> None:
        if os.path.basename(os.fspath(target)).startswith("a_validation"):
            os._exit(9)
        os.rename(source, target, **given)


@pytest.mark.parametrize("by", ["position", "content"])
@pytest.mark.parametrize("format", ["jsonl", "pbin", "mds", "webdataset"])
def test_a_split_resumed_on_changed_inputs_keeps_no_part_of_the_old_ones(
    tmp_path: Path, format: str, by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    options: dict[str, Any] = {
        "pbin": {"token_bytes": 2},
        "mds": {"columns": {"__key__": "str", "txt": "str"}},
    }

    def write(numbers: Any) -> None:
        with ps.create("a", format=format, overwrite=Path("a").exists(), **options.get(format, {})) as writer:
            for number in numbers:
                tokens = {"tokens": np.array([number + 1], np.uint16)}
                writer.write(tokens if format == "pbin" else {"__key__": f"{number:03d}", "txt": f"{number:03d}"})

    write(range(100))
    if os.fork() == 0:
        ps.split("a", "parts", ratio=(1, 1), by=by, to=format, store=LocalStore(EndsAtTheSecondPart()))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 9
    first = sorted(Path("parts").glob("a_*"))
    assert first
    write(reversed(range(100)))
    ps.split("a", "parts", ratio=(1, 1), by=by, to=format)
    found = [str(sample) for part in ("a_train", "a_validation") for sample in ps.open(first[0].with_name(part))]
    assert len(found) == len(set(found)) == 100


def test_a_dataset_that_took_the_place_of_a_part_is_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, count in (("a", 100), ("b", 60)):
        with ps.create(name, format="webdataset") as writer:
            for number in range(count):
                writer.write({"__key__": f"{name}{number:03d}", "txt": "x"})
    if os.fork() == 0:
        ps.split("a", "parts", ratio=(1, 1), store=LocalStore(EndsAtTheSecondPart()))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 9
    ps.merge(["b"], "parts/a_train", overwrite=True)
    with pytest.raises(ps.errors.ConfigError, match="the output exists"):
        ps.split("a", "parts", ratio=(1, 1))
    assert len(ps.open("parts/a_train")) == 60
