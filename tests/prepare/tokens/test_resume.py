"""Stopped anywhere and run again, `pack` ends in the same bytes; what differs is refused by name."""

from __future__ import annotations

import contextlib
import functools
import gzip
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import internals
from tests.internals import PLAN_VERSION as VERSION
from tests.internals import Plan, is_staged, is_work, nth_staged_name, place_of, replace
from tests.prepare.conftest import TEXTS, names_in, write_lines

import penstock as ps
from penstock.errors import ConfigError, Corrupt, PrepareError
from penstock.prepare import PackProgress, PackReport, pack
from penstock.store import LocalStore
from penstock.testing import FaultStore, FaultyOs, count_operations, faults_everywhere

Pack = Callable[..., PackReport]
TASK_BYTES = 2500


def work_folder(output: Path) -> str:
    """Path of the work folder of an output."""
    return internals.work_folder(place_of(output), inside=False).path


def parts_in(folder: Path) -> list[str]:
    """Paths of the parts in a work folder."""
    return sorted(map(str, folder.glob("*/parts/*/*.part")))


class Stop(Exception):
    """Stands for whatever ends a run."""


def stop_after(parts: int) -> Callable[[PackProgress], None]:
    """A progress callback that ends the run after so many parts."""
    seen: list[PackProgress] = []

    def progress(now: PackProgress) -> None:
        seen.append(now)
        if len(seen) == parts:
            raise Stop

    return progress


@pytest.fixture
def whole(tmp_path: Path, corpus: Path, made: Pack) -> bytes:
    """The bytes of a run that nobody stops."""
    report = made(corpus, tmp_path / "whole" / "out.pbin", task_bytes=TASK_BYTES)
    assert report.tasks > 5
    return (tmp_path / "whole" / "out.pbin").read_bytes()


@pytest.fixture
def stopped(tmp_path: Path, corpus: Path, made: Pack) -> Path:
    """A work folder with three finished tasks."""
    with pytest.raises(Stop):
        made(corpus, task_bytes=TASK_BYTES, progress=stop_after(3))
    folder = Path(work_folder(tmp_path / "out.pbin"))
    assert {name.rpartition("/")[2][:15] for name in parts_in(folder)} == {f"0000000{n}-000000" for n in range(3)}
    assert len(names_in(folder)) == 3 + 3 + 3 + 2  # lock, plan, its piece; parts; folders
    assert not (tmp_path / "out.pbin").exists()
    return folder


class TestGoingOn:
    @pytest.mark.parametrize("parts", [1, 2, 5])
    def test_only_what_is_missing_is_done(
        self, tmp_path: Path, corpus: Path, made: Pack, whole: bytes, parts: int
    ) -> None:
        with pytest.raises(Stop):
            made(corpus, task_bytes=TASK_BYTES, progress=stop_after(parts))
        report = made(corpus)
        assert report.reused_tasks == parts < report.tasks
        assert (tmp_path / "out.pbin").read_bytes() == whole
        assert names_in(tmp_path) >= {"out.pbin", "out.pbin.penstock"}
        assert not os.path.exists(work_folder(tmp_path / "out.pbin"))

    def test_the_side_file_is_the_same_too(
        self, tmp_path: Path, corpus: Path, made: Pack, whole: bytes, stopped: Path
    ) -> None:
        made(corpus)
        assert (tmp_path / "out.pbin.penstock").read_bytes() == (tmp_path / "whole/out.pbin.penstock").read_bytes()

    def test_workers_and_executor_may_differ(
        self, tmp_path: Path, corpus: Path, made: Pack, whole: bytes, stopped: Path
    ) -> None:
        report = made(corpus, executor="processes", workers=2)
        assert report.reused_tasks == 3
        assert (tmp_path / "out.pbin").read_bytes() == whole

    def test_a_moved_input_is_the_same(
        self, tmp_path: Path, corpus: Path, made: Pack, whole: bytes, stopped: Path
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        os.utime(corpus, (5, 5))
        corpus.rename(tmp_path / "elsewhere" / "corpus.jsonl")
        assert made(tmp_path / "elsewhere").reused_tasks == 3
        assert (tmp_path / "out.pbin").read_bytes() == whole

    def test_a_compressed_input(self, tmp_path: Path, corpus: Path, made: Pack, whole: bytes) -> None:
        path = tmp_path / "corpus.jsonl.gz"
        path.write_bytes(gzip.compress(corpus.read_bytes()))
        write_lines(tmp_path / "z.jsonl", [{"text": "the last"}])
        with pytest.raises(Stop):
            made([path, tmp_path / "z.jsonl"], task_bytes=TASK_BYTES, progress=stop_after(4))
        assert made([path, tmp_path / "z.jsonl"]).reused_tasks == 4
        made([path, tmp_path / "z.jsonl"], tmp_path / "again.pbin", task_bytes=TASK_BYTES)
        assert (tmp_path / "out.pbin").read_bytes() == (tmp_path / "again.pbin").read_bytes()

    def test_a_compressed_input_that_is_done_is_not_decompressed_again(
        self, tmp_path: Path, corpus: Path, made: Pack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "corpus.jsonl.gz"
        path.write_bytes(gzip.compress(corpus.read_bytes()))
        write_lines(tmp_path / "z.jsonl", [{"text": "the last"}] * 300)
        n_parts = made(path, tmp_path / "alone.pbin", task_bytes=TASK_BYTES).tasks
        with pytest.raises(Stop):
            made([path, tmp_path / "z.jsonl"], task_bytes=TASK_BYTES, progress=stop_after(n_parts + 1))
        replace(monkeypatch, "cut_stream", None)
        assert made([path, tmp_path / "z.jsonl"]).reused_tasks == n_parts + 1

    def test_skipping_may_begin_and_end(self, tmp_path: Path, corpus: Path, made: Pack) -> None:
        corpus.write_bytes(corpus.read_bytes() + b"bad\n" + corpus.read_bytes())
        with pytest.raises(PrepareError, match=r"line 151: not JSON.*the same command again"):
            made(corpus, task_bytes=TASK_BYTES)
        with pytest.raises(Stop):
            made(corpus, on_error="skip", progress=stop_after(8))
        with pytest.raises(PrepareError, match="line 151: not JSON"):
            made(corpus)
        report = made(corpus, on_error="skip")
        assert [one.line for one in report.dropped] == [151]
        assert (report.documents, report.reused_tasks > 7) == (300, True)

    def test_restart_throws_the_work_away(self, tmp_path: Path, corpus: Path, made: Pack, stopped: Path) -> None:
        assert made(corpus, eos="^", restart=True).reused_tasks == 0
        assert names_in(tmp_path) == {"corpus.jsonl", "out.pbin", "out.pbin.penstock"}

    def test_what_a_killed_run_left_half_written_goes(
        self, tmp_path: Path, corpus: Path, made: Pack, whole: bytes, stopped: Path
    ) -> None:
        (stopped / nth_staged_name("plan", 0)).write_bytes(b"half")
        (tmp_path / nth_staged_name("out.pbin", 0)).write_bytes(b"half")
        made(corpus)
        assert (tmp_path / "out.pbin").read_bytes() == whole
        assert not [name for name in names_in(tmp_path) if "staged" in name or "work" in name]

    def test_a_run_killed_after_its_commit(
        self, tmp_path: Path, corpus: Path, made: Pack, whole: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replace(monkeypatch, "clear_work", lambda self: None)
        made(corpus, task_bytes=TASK_BYTES)
        monkeypatch.undo()
        assert os.path.exists(work_folder(tmp_path / "out.pbin"))
        report = made(corpus)
        assert (report.was_complete, report.documents, report.tasks) == (True, 150, 0)
        assert not os.path.exists(work_folder(tmp_path / "out.pbin"))
        assert (tmp_path / "out.pbin").read_bytes() == whole
        with pytest.raises(ConfigError, match="the output exists"):
            made(corpus)  # nothing was killed since

    @pytest.mark.parametrize(
        ("name", "to"), [("out", "megatron"), ("out.zarr", "flat-tokens"), ("out", "mds"), ("out.pbin", "pbin")]
    )
    def test_every_target_killed_after_its_commit(
        self, tmp_path: Path, corpus: Path, made: Pack, monkeypatch: pytest.MonkeyPatch, name: str, to: str
    ) -> None:
        folder = tmp_path / "to"
        with monkeypatch.context() as patched:
            replace(patched, "clear_work", lambda self: None)
            made(corpus, folder / name, to=to, task_bytes=TASK_BYTES)
        assert os.path.exists(work_folder(folder / name))
        before = {one: (folder / one).read_bytes() for one in names_in(folder) if (folder / one).is_file()}
        report = made(corpus, folder / name, to=to)
        assert report.was_complete
        assert report.documents == 150
        after = {one: (folder / one).read_bytes() for one in names_in(folder) if (folder / one).is_file()}
        assert after == {one: data for one, data in before.items() if not is_work(one)}
        assert not [one for one in names_in(folder) if "work" in one]
        with pytest.raises(ConfigError, match="the output exists"):
            made(corpus, folder / name, to=to, eos="^")

    def test_work_for_a_new_output_stays_when_the_old_one_is_refused(
        self, tmp_path: Path, corpus: Path, made: Pack, stopped: Path
    ) -> None:
        made(corpus, tmp_path / "other.pbin", eos="^")
        (tmp_path / "other.pbin").rename(tmp_path / "out.pbin")
        (tmp_path / "other.pbin.penstock").rename(tmp_path / "out.pbin.penstock")
        with pytest.raises(ConfigError, match="the output exists"):
            made(corpus)
        assert (stopped / "plan").exists()


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"eos": "^"}, "--eos"),
            ({"field": "id"}, "--field"),
            ({"special_tokens": "none"}, "--special-tokens"),
            ({"engine": "tokenizers"}, "--engine"),
            ({"overwrite": True}, "--overwrite"),
            ({"task_bytes": 999}, "task_bytes"),
        ],
    )
    def test_another_option(self, corpus: Path, made: Pack, stopped: Path, options: dict[str, Any], named: str) -> None:
        with pytest.raises(ConfigError, match=f"unfinished work for this output differs: {named}.*--restart"):
            made(corpus, **options)
        assert made(corpus).reused_tasks == 3

    def test_another_tokenizer(self, golden: Path, corpus: Path, made: Pack, stopped: Path) -> None:
        with pytest.raises(ConfigError, match="--tokenizer"):
            made(corpus, tokenizer=golden / "modalities" / "tokenizers" / "small1")

    def test_a_changed_input(self, corpus: Path, made: Pack, stopped: Path) -> None:
        data = corpus.read_bytes()
        for changed in (data + data[:60], data[:-20] + b"x" + data[-19:], data.replace(b"document 90", b"document 91")):
            assert changed != data
            corpus.write_bytes(changed)
            with pytest.raises(ConfigError, match=r"the input corpus\.jsonl has changed"):
                made(corpus)
        corpus.write_bytes(data)
        assert made(corpus).reused_tasks == 3

    def test_other_inputs(self, tmp_path: Path, corpus: Path, made: Pack, stopped: Path) -> None:
        write_lines(tmp_path / "b.jsonl", [{"text": "b"}])
        with pytest.raises(ConfigError, match=r"the input b\.jsonl is new"):
            made([corpus, tmp_path / "b.jsonl"])
        with pytest.raises(ConfigError, match=r"the input b\.jsonl is new"):
            made(tmp_path / "b.jsonl")

    def test_a_large_input_that_changed_in_what_is_done(
        self, corpus: Path, made: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Too large to be hashed whole: its sample may miss a change, the digests of finished parts do not.
        replace(monkeypatch, "whole_digest_bytes", 0)
        replace(monkeypatch, "sample_fingerprint", lambda *given: "a few bytes")
        for path in (corpus, tmp_path / "corpus.jsonl.gz"):
            data = corpus.read_bytes()
            path.write_bytes(data if path == corpus else gzip.compress(data))
            output = tmp_path / f"{path.name}.pbin"
            with pytest.raises(Stop):
                made(path, output, task_bytes=TASK_BYTES, progress=stop_after(3))
            changed = data.replace(b"document 9:", b"document 8:")
            path.write_bytes(changed if path == corpus else same_size(gzip.compress(changed), path))
            os.utime(path, (5, 5))
            with pytest.raises((PrepareError, ConfigError), match=r"the input changed after|has changed"):
                made(path, output)
            corpus.write_bytes(data)

    def test_a_damaged_plan_or_part(self, corpus: Path, made: Pack, stopped: Path) -> None:
        part = Path(parts_in(stopped)[1])
        data = part.read_bytes()
        part.write_bytes(data[:-1])
        with pytest.raises(Corrupt, match=r"a part of unfinished work is damaged.*--restart"):
            made(corpus)
        (stopped / "plan").write_bytes(b"{")
        with pytest.raises(Corrupt, match=r"the plan of unfinished work is damaged.*--restart"):
            made(corpus)
        assert made(corpus, restart=True).reused_tasks == 0

    def test_work_of_another_version(
        self, corpus: Path, made: Pack, stopped: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replace(monkeypatch, "plan_of_pack", functools.partial(Plan, version=VERSION + 1))
        with pytest.raises(ConfigError, match="the version of Penstock"):
            made(corpus)
        monkeypatch.undo()
        shutil.rmtree(stopped)
        stopped.mkdir()
        (stopped / "plan.json").write_text("{}")  # as 0.1 left it
        (stopped / "000000-00000000.part").write_bytes(b"tokens")
        with pytest.raises(ConfigError, match=r"an earlier version of Penstock.*--restart"):
            made(corpus)
        assert made(corpus, restart=True).reused_tasks == 0
        assert not stopped.exists()

    def test_a_difference_that_shows_late(
        self, corpus: Path, made: Pack, stopped: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replace(monkeypatch, "try_gigatoken", lambda spec, texts: "it went bad")
        with pytest.raises(PrepareError, match=r"finished tasks were encoded by gigatoken.*it went bad.*--restart"):
            made(corpus)

    def test_two_runs_at_once(self, tmp_path: Path, corpus: Path, made: Pack) -> None:
        def again(now: PackProgress) -> None:
            with pytest.raises(PrepareError, match="another run is writing this output"):
                made(corpus)

        report = made(corpus, task_bytes=TASK_BYTES, progress=again)
        assert report.documents == len(TEXTS)


def same_size(data: bytes, path: Path) -> bytes:
    """A gzip file of the size that the file had: members may be followed by zeros."""
    return data.ljust(path.stat().st_size, b"\0")[: max(path.stat().st_size, len(data))]


class TestFaults:
    """A fault at an operation of the whole run: an error, no output but a whole one, and a next run that ends well."""

    @staticmethod
    def run(folder: Path, bpe2: Path, store: LocalStore) -> None:
        pack(
            folder / "a.jsonl",
            folder / "made" / "out.pbin",
            tokenizer=bpe2,
            executor="inline",
            task_bytes=3000,
            oracle_bytes=500,
            store=store,
        )

    @pytest.mark.parametrize("mode", ["raise", "enospc"])
    @pytest.mark.parametrize("every", range(4))
    def test_one_at_a_time(self, tmp_path: Path, bpe2: Path, mode: Any, every: int) -> None:
        write_lines(tmp_path / "a.jsonl", ({"text": text} for text in TEXTS[:60]))
        total = count_operations(lambda store: self.run(tmp_path, bpe2, store))
        output = tmp_path / "made" / "out.pbin"
        whole = output.read_bytes()
        for n in range(1 + every, total, 20):
            for path in (output, output.with_name("out.pbin.penstock")):
                path.unlink(missing_ok=True)
            # After the commit it is no error: what can't be removed then, the next run removes.
            with contextlib.suppress(PrepareError, OSError):
                self.run(tmp_path, bpe2, FaultStore(n, mode))
            assert not output.exists() or output.read_bytes() == whole, n
            with contextlib.suppress(ConfigError):
                self.run(tmp_path, bpe2, LocalStore())
            assert output.read_bytes() == whole
            assert not os.path.exists(work_folder(output)), n

    def test_a_store_that_pack_makes_itself(self, tmp_path: Path, corpus: Path, made: Pack) -> None:
        with faults_everywhere(FaultyOs()) as counted:
            made(corpus, task_bytes=TASK_BYTES)
        full = FaultyOs(counted.operations * 2 // 3, "enospc")
        with faults_everywhere(full), pytest.raises(OSError, match="No space left"):
            made(corpus, task_bytes=TASK_BYTES, overwrite=True)
        assert made(corpus, overwrite=True).reused_tasks > 0


PACK = [sys.executable, "-c", f"from {internals.CLI_MODULE} import main; main()", "pack"]


class TestKills:
    """SIGKILL of real processes."""

    @pytest.fixture
    def large(self, tmp_path: Path) -> Path:
        return write_lines(tmp_path / "large.jsonl", ({"text": f"{n} " + TEXTS[n % 150] * 5} for n in range(40_000)))

    def test_the_parent_then_a_worker(self, tmp_path: Path, large: Path, bpe2: Path, made: Pack) -> None:
        output = tmp_path / "out.pbin"
        made(large, tmp_path / "whole.pbin")
        parts = Path(work_folder(output))
        script = (
            "import sys; from penstock.prepare import pack; "
            "pack(sys.argv[1], sys.argv[2], tokenizer=sys.argv[3], workers=2, task_bytes=400_000)"
        )
        command = [sys.executable, "-c", script, str(large), str(output), str(bpe2)]
        parent = subprocess.Popen(command, stderr=subprocess.PIPE)
        children = wait_for_parts(parts, 3, parent)
        parent.kill()
        parent.communicate()
        assert all(is_gone(pid) for pid in children)
        assert not output.exists()
        finished = len(parts_in(parts))
        assert finished >= 3

        parent = subprocess.Popen(command, stderr=subprocess.PIPE)
        children = wait_for_parts(parts, finished + 2, parent)
        os.kill(children[-1], signal.SIGKILL)
        _, said = parent.communicate(timeout=60)
        assert parent.returncode == 0, said
        assert b"a worker was killed or exited in task" in said
        assert b"large.jsonl, bytes " in said
        assert all(is_gone(pid) for pid in children)
        assert output.read_bytes() == (tmp_path / "whole.pbin").read_bytes()

    def test_an_interrupt_ends_it_at_once(self, tmp_path: Path, large: Path, bpe2: Path) -> None:
        output = tmp_path / "out.pbin"
        command = [*PACK, str(large), "-o", str(output), "--tokenizer", str(bpe2), "--workers", "2"]
        script = internals.code_to_set("task_bytes_of_pack", "lambda total: 400_000; ")
        command[2] = script + command[2]
        parent = subprocess.Popen(command, stderr=subprocess.PIPE)
        children = wait_for_parts(Path(work_folder(output)), 2, parent)
        parent.send_signal(signal.SIGINT)
        _, said = parent.communicate(timeout=30)
        assert parent.returncode == 130
        assert b"Traceback" not in said
        assert all(is_gone(pid) for pid in children)
        assert not [name for name in names_in(tmp_path) if is_staged(name)]


def wait_for_parts(folder: Path, n_parts: int, parent: subprocess.Popen[bytes]) -> list[int]:
    """Wait until so many parts are there; returns the processes below `parent`."""
    stop = time.monotonic() + 60
    while len(parts_in(folder)) < n_parts:
        assert parent.poll() is None, parent.communicate()
        assert time.monotonic() < stop
        time.sleep(0.002)
    below = {parent.pid}
    for _ in range(2):
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                if int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]) in below:
                    below.add(int(name))
    assert len(below) == 3
    return sorted(below - {parent.pid})


def is_gone(pid: int) -> bool:
    """Whether a process ends soon."""
    stop = time.monotonic() + 20
    while time.monotonic() < stop:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_overwrite_replaces_a_group_of_flat_tokens(tmp_path: Path, corpus: Path, made: Pack) -> None:
    made(corpus, tmp_path / "out.zarr", to="flat-tokens", task_bytes=TASK_BYTES)
    before = ps.open(tmp_path / "out.zarr")
    short = write_lines(tmp_path / "short.jsonl", [{"text": "the only one"}])
    made(short, tmp_path / "out.zarr", to="flat-tokens", overwrite=True)
    assert len(ps.open(tmp_path / "out.zarr")) == 1 < len(before)
    with pytest.raises(ConfigError, match="is a folder"):
        made(corpus, tmp_path / "out.zarr", to="pbin", overwrite=True)
