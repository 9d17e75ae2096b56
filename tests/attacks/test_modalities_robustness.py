"""What happens to Modalities in the field, and what should have happened: one test for each way it lost data.

Where the original ran code from a file, served wrong data, dropped documents or waited for ever, there is a typed error
that names the place, or the right result.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import CLI_MODULE, command_module
from tests.preloaded import served

import penstock as ps
from penstock.compat.modalities import (
    LargeFileLinesReader,
    PackedMemMapDatasetBase,
    PackedMemMapDatasetContinuous,
)
from penstock.errors import Corrupt, FormatError, PenstockError, Truncated, UnsafeData

LIMIT_S = 60
GONE_S = 30
HEADER_BYTES = 12
CORPUS_BYTES = 9_500_000

SETTINGS = {
    "src_path": "docs.jsonl",
    "dst_path": "docs.pbin",
    "jq_pattern": ".text",
    "num_cpus": 2,
    "eod_token": "<|eod|>",
    "processing_batch_size": 7,
    "raw_samples_queue_size": 3,
    "processed_samples_queue_size": 3,
}


class Harmful:
    """Makes a folder when it is unpickled by Python."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.path),))


@pytest.fixture(scope="module", autouse=True)
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`penstock` on PATH is a fork of an interpreter that has imported it."""
    modules = (CLI_MODULE, command_module("modalities"), "penstock.prepare", "gigatoken", "tokenizers", "jq")
    with served(tmp_path_factory.mktemp("programs"), modules) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        yield


@pytest.fixture
def place(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a packed file, JSONL, and a tokenizer."""
    folder = golden / "modalities"
    shutil.copy(folder / "pbin" / "docs.bpe2.pbin", tmp_path / "good.pbin")
    shutil.copy(folder / "raw" / "docs.jsonl", tmp_path)
    shutil.copy(folder / "raw" / "docs.idx", tmp_path)
    shutil.copytree(folder / "tokenizers" / "bpe2", tmp_path / "bpe2")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def modalities(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    # A fork doesn't take over the limits of the process that asks for it.
    program = str(Path(sys.executable).parent / "penstock") if "preexec_fn" in options else "penstock"
    command = [program, "modalities", "data", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, **options)


def write_config(**settings: Any) -> Path:
    tokenizer = {"pretrained_model_name_or_path": "bpe2", "padding": False, "truncation": False}
    config = {
        "settings": SETTINGS | settings,
        "tokenizer": {"component_key": "tokenizer", "variant_key": "pretrained_hf_tokenizer", "config": tokenizer},
    }
    Path("pack.yaml").write_text(json.dumps(config))  # JSON is YAML
    return Path("pack.yaml")


def refused(done: subprocess.CompletedProcess[str], what: str) -> None:
    """A message on one line, a status that says what it is, and nothing else: 1 would be a finding."""
    assert done.returncode not in (0, 1, 2, 70), done.stderr
    assert what in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


def changed(change: Callable[[bytearray], object], target: str = "bad.pbin") -> str:
    data = bytearray(Path("good.pbin").read_bytes())
    given = change(data)
    Path(target).write_bytes(bytes(given if isinstance(given, bytes | bytearray) else data))
    return target


def data_bytes_of(path: str) -> int:
    return struct.unpack("<Q", Path(path).read_bytes()[:8])[0]


def readers_refuse(path: str, error: type[Exception] | tuple[type[Exception], ...]) -> None:
    """Every way to read documents refuses the file, and the readers of windows too."""
    for read in (
        lambda: ps.open(path)[0],
        lambda: PackedMemMapDatasetBase(path, "text")[0],
        lambda: PackedMemMapDatasetContinuous(path, "text", 16, True)[0],
    ):
        with pytest.raises(error):
            read()


# --- opening a hostile file ------------------------------------------------------------------------------------------


def test_a_hostile_index_of_documents_runs_nothing(place: Path) -> None:
    stop = HEADER_BYTES + data_bytes_of("good.pbin")
    path = changed(lambda data: data[:stop] + pickle.dumps([(0, 2), Harmful(place / "made")], protocol=4))
    for read in (lambda: ps.open(path)[0], lambda: PackedMemMapDatasetBase(path, "text")):
        with pytest.raises((UnsafeData, Corrupt)):
            read()
    refused(modalities("shuffle_tokenized_data", "--input_data_path", path, "--output_data_path", "s.pbin"), path)
    refused(modalities("merge_packed_data", path, "m.pbin"), path)
    assert not (place / "made").exists()
    assert not (place / "s.pbin").exists()


def test_a_hostile_index_of_lines_runs_nothing(place: Path) -> None:
    Path("docs.idx").write_bytes(pickle.dumps([Harmful(place / "made")], protocol=4))
    for read in (lambda: ps.open("docs.jsonl")[0], lambda: LargeFileLinesReader("docs.jsonl")):
        with pytest.raises((UnsafeData, Corrupt), match="pickled"):
            read()
    refused(modalities("pack_encoded_data", write_config()), "docs.idx")
    assert not (place / "made").exists()


# --- killed, out of memory, out of disk ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with documents for several tasks, their index, and what packing them gives when nobody disturbs it."""
    folder = tmp_path_factory.mktemp("corpus")
    documents = (golden / "modalities" / "raw" / "docs.jsonl").read_bytes()
    (folder / "docs.jsonl").write_bytes(documents * (1 + CORPUS_BYTES // len(documents)))
    shutil.copytree(golden / "modalities" / "tokenizers" / "bpe2", folder / "bpe2")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in (["create_raw_index", "docs.jsonl"], ["pack_encoded_data", write_config(num_cpus=1)]):
            assert modalities(*command).returncode == 0
    return folder


@pytest.fixture
def corpus(place: Path, undisturbed: Path) -> bytes:
    """The same in the current folder; what packing them gives."""
    for name in ("docs.jsonl", "docs.idx"):
        Path(name).unlink()
        os.link(undisturbed / name, name)
    os.link(undisturbed / "docs.pbin", "undisturbed.pbin")
    return Path("undisturbed.pbin").read_bytes()


def start_packing() -> tuple[subprocess.Popen[bytes], list[int]]:
    """The command, as soon as it has two workers, and their ids."""
    command = [str(Path(sys.executable).parent / "penstock"), "modalities", "data", "pack_encoded_data"]
    started = subprocess.Popen(
        [*command, str(write_config())], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and started.poll() is None:
        workers = descendants(started.pid)
        if len(workers) >= 2:
            return started, workers
        time.sleep(0.002)
    raise AssertionError("the command never had two workers")


def descendants(pid: int) -> list[int]:
    """Processes that `pid` started, and those that they started."""
    with contextlib.suppress(OSError):
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [one for child in children for one in (child, *descendants(child))]
    return []


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_killed_and_run_again(corpus: bytes) -> None:
    started, workers = start_packing()
    started.kill()
    started.communicate()
    deadline = time.monotonic() + GONE_S
    while any(map(is_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, workers)), "a worker outlives its parent"
    assert not Path("docs.pbin").exists()
    done = modalities("pack_encoded_data", write_config(), "--file_existence_policy", "skip")
    assert done.returncode == 0, done.stderr
    assert Path("docs.pbin").read_bytes() == corpus


def test_a_killed_worker_is_replaced(corpus: bytes) -> None:
    started, workers = start_packing()
    os.kill(workers[0], signal.SIGKILL)
    _, said = started.communicate(timeout=LIMIT_S)
    assert started.returncode == 0, said
    assert Path("docs.pbin").read_bytes() == corpus


def test_a_full_disk_is_an_error(corpus: bytes) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    done = modalities("pack_encoded_data", write_config(), preexec_fn=limit)
    assert done.returncode == 18
    assert "Traceback" not in done.stderr
    assert not Path("docs.pbin").exists()
    for command in (
        ("merge_packed_data", "undisturbed.pbin", "m.pbin"),
        ("shuffle_tokenized_data", "--input_data_path", "undisturbed.pbin", "--output_data_path", "m.pbin"),
        ("shuffle_jsonl_data", "--input_data_path", "docs.jsonl", "--output_data_path", "m.pbin"),
        ("create_raw_index", "docs.jsonl", "--index_path", "m.pbin"),
    ):
        refused(modalities(*command, preexec_fn=limit), "File too large")
        assert not [name for name in os.listdir() if name.startswith((".m.pbin", "m.pbin"))]


def test_what_a_killed_writer_left_is_not_taken_for_done(place: Path) -> None:
    half = data_bytes_of("good.pbin") // 2
    changed(lambda data: struct.pack("<QI", 0, 2) + data[12 : 12 + half], "docs.pbin")
    readers_refuse("docs.pbin", Truncated)
    refused(modalities("pack_encoded_data", write_config()), "exists")
    refused(modalities("pack_encoded_data", write_config(), "--file_existence_policy", "skip"), "not a complete packed")
    done = modalities("pack_encoded_data", write_config(), "--file_existence_policy", "override")
    assert done.returncode == 0, done.stderr
    assert Path("docs.pbin").read_bytes() == Path("good.pbin").read_bytes()


# --- lines and settings that give no document ------------------------------------------------------------------------


def test_a_line_that_fails_takes_no_other_with_it(place: Path) -> None:
    rows: list[Any] = [{"text": f"document {n}"} for n in range(40)]
    bad = {4: {"text": ""}, 11: {"text": None}, 12: {}, 13: {"text": 5}, 14: "text", 39: {"text": "\ud800"}}
    Path("docs.jsonl").write_text("\n".join(json.dumps(bad.get(n, row)) for n, row in enumerate(rows)))
    modalities("create_raw_index", "docs.jsonl", "--file_existence_policy", "override")
    done = modalities("pack_encoded_data", write_config())
    assert done.returncode == 0, done.stderr
    assert len(ps.open("docs.pbin")) == 34
    last = done.stdout.splitlines()[-1]
    assert "6 lines contain no document" in last
    assert "line 5 " in last


def test_a_pattern_that_finds_nothing(place: Path) -> None:
    refused(modalities("pack_encoded_data", write_config(jq_pattern=".nothing")), "no document")
    assert not Path("docs.pbin").exists()


@pytest.mark.parametrize(
    ("settings", "what"),
    [({"jq_pattern": ".text |"}, "jq"), ({"eod_token": "<|nothing|>"}, "not in the vocabulary")],
)
def test_settings_that_can_not_be(place: Path, settings: dict[str, str], what: str) -> None:
    refused(modalities("pack_encoded_data", write_config(**settings)), what)
    assert not Path("docs.pbin").exists()


def test_no_index_hangs_on_a_faulty_line_before_a_slow_one(place: Path) -> None:
    with open("slow.jsonl", "wb") as file:
        file.write(b'{"text": "a"}\nfaulty\n')
        file.write(b'{"text": "' + b"x" * 30_000_000 + b'"}\n')
    refused(modalities("create_raw_index", "slow.jsonl"), "line 2")
    assert not Path("slow.idx").exists()


# --- damaged files ---------------------------------------------------------------------------------------------------


def test_cut_in_the_data(place: Path) -> None:
    for keep in (0, 5, 11, 13, 1000, HEADER_BYTES + data_bytes_of("good.pbin") - 1):
        readers_refuse(changed(lambda data, keep=keep: data[:keep]), FormatError)


def test_cut_in_or_before_the_index(place: Path) -> None:
    size, stop = os.path.getsize("good.pbin"), HEADER_BYTES + data_bytes_of("good.pbin")
    for keep in (stop, stop + 1, stop + 30, size - 2, size - 1):
        readers_refuse(changed(lambda data, keep=keep: data[:keep]), FormatError)


@pytest.mark.parametrize("garbage", [b"\0", b"x" * 1000, b"e."])
def test_garbage_appended(place: Path, garbage: bytes) -> None:
    path = changed(lambda data: data + garbage)
    with pytest.raises(FormatError):
        ps.open(path)[0]
    with pytest.raises(FormatError):
        PackedMemMapDatasetBase(path, "text")
    assert [one for one in ps.verify(path, depth="quick") if one.severity == "error"]


def test_flipped_bits_are_found(place: Path) -> None:
    with ps.create("packed.pbin", format="pbin", token_bytes=2) as writer:
        source: Any = ps.open("good.pbin")
        writer.write_run(source.tokens(0, source.num_tokens), np.diff(source.doc_starts))
    assert ps.verify("packed.pbin", depth="full") == []
    data = bytearray(Path("packed.pbin").read_bytes())
    data[9000] ^= 4
    Path("packed.pbin").write_bytes(bytes(data))
    (finding,) = ps.verify("packed.pbin", depth="full")
    assert finding.severity == "error"


def test_a_wrong_token_size(place: Path) -> None:
    for size in (0, 3, 4, 8, 1 << 31):
        path = changed(lambda data, size=size: data[:8] + struct.pack("<I", size) + data[12:])
        with pytest.raises(FormatError):
            ps.open(path)[0]
        with pytest.raises((FormatError, RuntimeError)):
            PackedMemMapDatasetBase(path, "text")[0]


def test_a_data_length_that_is_off(place: Path) -> None:
    right = data_bytes_of("good.pbin")
    for wrong in (0, 1, right - 2, right - 1, right + 1, right + 2, 2 * right, (1 << 64) - 1):
        path = changed(lambda data, wrong=wrong: struct.pack("<Q", wrong) + data[8:])
        with pytest.raises(FormatError):
            ps.open(path)[0]


def test_an_index_that_points_outside(place: Path) -> None:
    stop = HEADER_BYTES + data_bytes_of("good.pbin")
    for pairs in ([(0, 10), (1 << 40, 2)], [(0, 1 << 40)], [(0, 2), (2, data_bytes_of("good.pbin"))]):
        path = changed(lambda data, pairs=pairs: data[:stop] + pickle.dumps(pairs, protocol=4))
        with pytest.raises(FormatError):
            ps.open(path)[1]
        with pytest.raises((FormatError, IndexError, ValueError)):
            PackedMemMapDatasetBase(path, "text")[1]
        refused(modalities("shuffle_tokenized_data", "--input_data_path", path, "--output_data_path", "s.pbin"), path)


def test_lines_that_changed_after_indexing(place: Path) -> None:
    data = Path("docs.jsonl").read_bytes()
    Path("docs.jsonl").write_bytes(data[:40] + b"more" + data[40:])
    for read in (lambda: ps.open("docs.jsonl")[1], lambda: LargeFileLinesReader("docs.jsonl")[1]):
        with pytest.raises(PenstockError, match="penstock index"):
            read()
    refused(modalities("pack_encoded_data", write_config()), "penstock index")
    assert not Path("docs.pbin").exists()


# --- merged and shuffled ---------------------------------------------------------------------------------------------


def test_a_file_that_was_merged_wrong(place: Path, golden: Path) -> None:
    shutil.copy(golden / "modalities" / "pbin" / "merged.pbin", "merged.pbin")
    refused(
        modalities("shuffle_tokenized_data", "--input_data_path", "merged.pbin", "--output_data_path", "s.pbin"),
        "penstock repair",
    )
    ps.repair("merged.pbin", write=True)
    done = modalities("shuffle_tokenized_data", "--input_data_path", "merged.pbin", "--output_data_path", "s.pbin")
    assert done.returncode == 0, done.stderr
    assert len(ps.open("s.pbin")) == 69


def test_a_merge_that_is_right(place: Path) -> None:
    assert modalities("merge_packed_data", "good.pbin", "good.pbin", "m.pbin").returncode == 0
    merged, good = ps.open("m.pbin"), ps.open("good.pbin")
    assert len(merged) == 2 * len(good)
    for i in (0, 199, 200, 399):
        np.testing.assert_array_equal(merged[i]["tokens"], good[i % 200]["tokens"])
