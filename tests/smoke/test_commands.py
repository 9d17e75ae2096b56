"""Every command does its work on tiny data: status 0, and what it makes or says is there."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from tests.internals import build_index, cli, main
from tests.smoke.made import GOLDEN, MADE

import penstock
from penstock.errors import MissingExtra, NotFound

PACK = "--tokenizer tokenizers/bpe2 --eos <|eod|>"


@dataclass(frozen=True, slots=True)
class Use:
    """Arguments of a command, a file that it makes, and words that it says."""

    arguments: str
    makes: str = ""
    says: str = ""


USES: dict[str, Use] = {
    "demo": Use("new --max-mb 0.1", makes="new/stdlib.pbin", says="stop and resume"),
    "doctor": Use("", says="python"),
    "completion": Use("fish", says="_PENSTOCK_COMPLETE"),
    "cache": Use("", says="B\n"),
    "index": Use("inputs/part0.jsonl", makes="inputs/part0.idx"),
    "pack": Use(f"inputs/part0.jsonl -o new.pbin {PACK}", makes="new.pbin", says="20 documents"),
    "convert": Use("tokens/a.pbin new --to megatron", makes="new.idx", says="4 samples"),
    "info": Use("tokens/a.pbin", says="pbin"),
    "head": Use("lines/a.jsonl -n 1", says="line 0"),
    "find": Use("lines/a.jsonl --where id==2", says="1 found"),
    "lineage": Use("tokens/a.pbin", says="output"),
    "exclude": Use(
        "lines/a.jsonl --where id==2 --reason asked", makes="lines/a.jsonl.penstock.exclude.jsonl", says="1 added"
    ),
    "purge": Use("listed/a.jsonl -o new.jsonl", makes="new.jsonl.certificate.json", says="1 removed"),
    "report": Use("tokens/a.pbin -o new.html", makes="new.html", says="4 examples"),
    "diff": Use("tokens/a.pbin tokens/a.pbin", says="equal"),
    "verify": Use("tokens/a.pbin --depth full", says="clean"),
    "repair": Use("tokens/a.pbin", says="nothing"),
    "merge": Use("tokens/a.pbin tokens/a.pbin -o new.pbin", makes="new.pbin", says="8 documents"),
    "shuffle": Use("tokens/a.pbin -o new.pbin --seed 1", makes="new.pbin", says="4 documents"),
    "split": Use("lines/a.jsonl -o new --ratio 1,1", makes="new", says="2 lines"),
    "filter": Use("lines/a.jsonl -o new.jsonl --where id>2", makes="new.jsonl", says="3 removed"),
    "prepare": Use(
        "bare --non-interactive --split-ratio 2,1,1 --sample-type CrudeWebdataset",
        makes="bare/.nv-meta/.info.json",
        says="train",
    ),
    "prepare-media": Use("media --media-by-header", makes="media/.nv-meta", says="media"),
    "mount": Use("tars/a point"),
    "view": Use("tars/a --no-open"),
    "plan": Use("recipe.yaml", says="2 samples"),
    "stage": Use("recipe.yaml --hosts 1 --host 0", says="nothing to stage"),
    "status": Use("lines/a.jsonl", says="complete"),
    "explain": Use("recipe.yaml --step 1", says="document 1"),
    "modalities data create_raw_index": Use("inputs/part0.jsonl --index_path new.idx", makes="new.idx"),
    "modalities data pack_encoded_data": Use("configs/pack_part0.yaml", makes="pbin/parts/part0.pbin"),
    "modalities data merge_packed_data": Use("parts/part0.pbin parts/part1.pbin new.pbin", makes="new.pbin"),
    "modalities data shuffle_tokenized_data": Use(
        "--input_data_path parts/part0.pbin --output_data_path new.pbin --batch_size 3 --seed 1", makes="new.pbin"
    ),
    "modalities data shuffle_jsonl_data": Use(
        "--input_data_path inputs/part0.jsonl --output_data_path new.jsonl --seed 1", makes="new.jsonl"
    ),
    "modalities data create_shuffled_dataset_chunk": Use(
        "--input_file_list_path configs/file_list.txt --input_data_root_path parts --output_chunk_file_path new.pbin "
        "--chunk_id 0 --num_chunks 3 --global_seed 7",
        makes="new.pbin",
    ),
    "modalities data create_shuffled_jsonl_chunk": Use(
        "--input_file_list_path configs/file_list.txt --input_data_root_path inputs --output_chunk_file_path new.jsonl "
        "--chunk_id 0 --num_chunks 3 --global_seed 7",
        makes="new.jsonl",
    ),
    "modalities data prepare_instruction_tuning_data": Use("--config_file_path configs/instruct.yaml", says="24 train"),
    "energon prepare": Use(
        "bare --non-interactive --split-ratio 2,1,1 --sample-type CrudeWebdataset",
        makes="bare/.nv-meta/.info.json",
        says="train",
    ),
    "energon prepare-media": Use("media --media-metadata-by-header", makes="media/.nv-meta", says="media"),
    "energon info": Use("tars/a", says="4"),
    "energon lint": Use("tars/a", says="clean"),
    "energon preview": Use("tars/a", says="text 0"),
    "energon mount": Use("tars/a point"),
    "energon checkpoint redist": Use("state_0.pt states --new-world-size 2", makes="states", says="2 rank"),
}
STATE = {
    "version": 1,
    "loader": {
        "version": 1,
        "order": "feistel-1",
        "consumed": 4,
        "children": {},
        "recipe": "a",
        "history": [[0, 0, 4, 1]],
    },
}
RECIPE = (
    "penstock: 1\nbatch: {global_batch: 2}\n"
    "stream: {path: tokens/a.pbin, window: {chunk: {length: 4}}, shuffle: {seed: 5}}\n"
)
PATIENCE_S = 60.0


def leaves(group: click.Group, name: str = "") -> Iterator[str]:
    """Full names of all commands that do something."""
    context = click.Context(group)
    for inner in group.list_commands(context):
        command = group.get_command(context, inner)
        full = f"{name} {inner}".strip()
        if isinstance(command, click.Group):
            yield from leaves(command, full)
        else:
            yield full


def working_folder(place: Path) -> None:
    """The inputs of all uses; the working folder must be this one."""
    for name in ("inputs", "configs", "parts"):
        shutil.copytree(GOLDEN / "modalities" / "commands" / name, place / name)
    shutil.copytree(GOLDEN / "modalities" / "tokenizers" / "bpe2", place / "tokenizers" / "bpe2")
    prepared = shutil.ignore_patterns(".nv-meta", "*.idx", ".penstock")
    for name, source in (("media", "filesystem"), ("bare", "captioning")):
        shutil.copytree(GOLDEN / "energon" / source, place / name, ignore=prepared)
    for folder, format in (("lines", "jsonl"), ("tokens", "pbin"), ("tars", "webdataset")):
        (place / folder).mkdir()
        MADE[format](place / folder)
    (place / "listed").mkdir()
    shutil.copy(place / "lines" / "a.jsonl", place / "listed")
    penstock.exclude(place / "listed" / "a.jsonl", indices=[1], reason="asked")
    (place / "recipe.yaml").write_text(RECIPE)
    if importlib.util.find_spec("torch"):
        importlib.import_module("torch").save(STATE, place / "state_0.pt")
    else:  # it is there, and the command says what it lacks
        (place / "state_0.pt").touch()
    build_index(place / "inputs" / "part0.jsonl", index_path=place / "idx" / "part0.idx")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the inputs."""
    working_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_none_is_forgotten() -> None:
    assert set(USES) == set(leaves(cli))


@pytest.mark.parametrize("command", [name for name in USES if not name.endswith(("mount", "view"))])
def test_command(
    command: str, place: Path, capsys: pytest.CaptureFixture[str], skip_what_lacks: Callable[[Any, str], None]
) -> None:
    use = USES[command]
    assert not use.makes or not (place / use.makes).exists()
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), *use.arguments.split()])
    said = capsys.readouterr()
    skip_what_lacks(ended.value.code, said.err)
    assert ended.value.code == 0, said.err
    assert use.says in said.out + said.err
    assert (place / use.makes).exists()


@pytest.mark.parametrize("command", ["mount", "energon mount"])
def test_mount(command: str, place: Path, skip_what_lacks: Callable[[Any, str], None]) -> None:
    """The same through the kernel; a machine without FUSE only refuses."""
    has_fuse = os.access("/dev/fuse", os.W_OK) and shutil.which("fusermount3") is not None
    if has_fuse:
        (place / "point").mkdir()
    arguments = [sys.executable, "-m", "penstock", *command.split(), *USES[command].arguments.split()]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    names: list[str] = []
    try:
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None and time.monotonic() < deadline and not names:
            time.sleep(0.02)
            names = os.listdir("point") if has_fuse else []
        text = (place / "point" / "k0.txt").read_text() if names else None
    finally:
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE_S)[1]
    skip_what_lacks(process.returncode, said)
    refused = 1 if command.startswith("energon") else NotFound.exit_status  # all refusals of Energon's end with 1
    assert process.returncode == (0 if has_fuse else refused), said
    assert text == ("text 0" if has_fuse else None)


def test_view(place: Path, may_lack_extras: bool) -> None:
    """The first page, by the address that is printed first."""
    arguments = [sys.executable, "-m", "penstock", "view", *USES["view"].arguments.split()]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            page = urllib.request.urlopen(url, timeout=PATIENCE_S).read().decode() if url else ""
        finally:
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=PATIENCE_S)[1]
    if may_lack_extras and process.returncode == MissingExtra.exit_status:
        pytest.skip(said)
    assert process.returncode == 0, said
    assert "webdataset" in page
