"""`penstock modalities data …`: options, statuses and words; what the commands write is tested with their functions."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.called import run as run_command
from tests.internals import CLI_MODULE
from tests.reshape.datasets import documents_in, lines_in

COMMANDS = (
    "create_raw_index",
    "pack_encoded_data",
    "merge_packed_data",
    "shuffle_tokenized_data",
    "shuffle_jsonl_data",
    "create_shuffled_dataset_chunk",
    "create_shuffled_jsonl_chunk",
    "prepare_instruction_tuning_data",
)


@pytest.fixture
def place(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    commands = golden / "modalities" / "commands"
    for name in ("inputs", "configs", "parts"):
        shutil.copytree(commands / name, tmp_path / name)
    shutil.copytree(golden / "modalities" / "tokenizers" / "bpe2", tmp_path / "tokenizers" / "bpe2")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> tuple[str, str]:
    return run_command(capsys, "modalities", "data", *arguments, status=status)


@pytest.mark.parametrize("command", COMMANDS)
def test_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    out, _ = run(capsys, command, "--help")
    assert f"modalities data {command} [OPTIONS]" in " ".join(out.split())
    with_policy = command not in ("merge_packed_data", "prepare_instruction_tuning_data")
    assert ("--file_existence_policy [skip|error|override]" in " ".join(out.split())) is with_policy


def test_help_loads_no_numpy() -> None:
    script = (
        f"import contextlib, sys\nfrom {CLI_MODULE} import main\n"
        "with contextlib.suppress(SystemExit): main(['modalities', 'data', 'pack_encoded_data', '--help'])\n"
        "assert not {'numpy', 'yaml', 'jinja2', 'msgspec'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_index_and_pack(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "create_raw_index", "inputs/part0.jsonl", "--index_path", "idx/part0.idx")
    assert out == "idx/part0.idx: 20 lines of 2,637 bytes\n"
    run(capsys, "pack_encoded_data", "configs/pack_part0.yaml")
    assert Path("pbin/parts/part0.pbin").read_bytes() == Path("parts/part0.pbin").read_bytes()
    _, said = run(capsys, "pack_encoded_data", "configs/pack_part0.yaml", status=10)
    assert "--file_existence_policy override" in said
    out, _ = run(capsys, "pack_encoded_data", "configs/pack_part0.yaml", "--file_existence_policy", "skip")
    assert "exists and is kept" in out
    out, _ = run(capsys, "pack_encoded_data", "configs/pack_special.yaml")
    assert out.splitlines()[-1] == "note: unknown settings are ignored: bogus"


def test_merge(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "merge_packed_data", "parts/part0.pbin", "parts/part1.pbin", "m.pbin")
    assert out.splitlines()[-1].startswith("different from Modalities: the index is right")
    assert len(documents_in("m.pbin")) == 43
    for target in ("m.pbin", "parts"):
        _, said = run(capsys, "merge_packed_data", "parts/part0.pbin", target, status=2)
        assert "exists already" in said
    run(capsys, "merge_packed_data", "nothing.pbin", "n.pbin", status=2)


def test_shuffles(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--input_data_path", "parts/part0.pbin", "--output_data_path", "s.pbin", "--batch_size", "3")
    run(capsys, "shuffle_tokenized_data", *options, "--seed", "1")
    assert sorted(documents_in("s.pbin")) == sorted(documents_in("parts/part0.pbin"))
    options = ("--input_data_path", "inputs/part0.jsonl", "--output_data_path", "s.jsonl")
    out, _ = run(capsys, "shuffle_jsonl_data", *options)
    assert "seed" in out
    assert sorted(lines_in("s.jsonl")) == sorted(lines_in("inputs/part0.jsonl"))
    run(capsys, "shuffle_jsonl_data", *options, status=10)
    run(capsys, "shuffle_jsonl_data", "--input_data_path", "nothing", "--output_data_path", "x", status=2)


@pytest.mark.parametrize(
    ("command", "root", "suffix"),
    [("create_shuffled_dataset_chunk", "parts", "pbin"), ("create_shuffled_jsonl_chunk", "inputs", "jsonl")],
)
def test_chunks(place: Path, capsys: pytest.CaptureFixture[str], command: str, root: str, suffix: str) -> None:
    options = ("--input_file_list_path", "configs/file_list.txt", "--input_data_root_path", root)
    last = ("--output_chunk_file_path", f"c.{suffix}", "--num_chunks", "3", "--global_seed", "7")
    out, _ = run(capsys, command, *options, *last, "--chunk_id", "0")
    assert "24" in out
    run(capsys, command, *options, *last, "--chunk_id", "1", status=10)
    run(capsys, command, *options, *last, "--chunk_id", "3", "--file_existence_policy", "override", status=10)
    assert Path(f"c.{suffix}").exists()


def test_instruction_tuning(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "prepare_instruction_tuning_data", "--config_file_path", "configs/instruct.yaml")
    assert out == "pbin/instruct/chat_1715b73: 24 train, 2 val, 4 test\n"
    run(capsys, "prepare_instruction_tuning_data", "--config_file_path", "nothing.yaml", status=2)


def test_refusals_of_the_system(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_bytes(b"")
    options = ("--input_data_path", "parts/part0.pbin", "--output_data_path", "file/s.pbin", "--seed", "1")
    _, said = run(capsys, "shuffle_tokenized_data", *options, status=18)
    assert said.startswith("penstock: ")


def test_json(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "merge_packed_data", "parts/part0.pbin", "parts/part1.pbin", "m.pbin", "--json")
    found = json.loads(out)
    assert found["path"] == "m.pbin"
    assert len(found["differences"]) == 1
    assert found["notes"] == []
