"""A URL in the place of every path that a command takes: it works, or is refused; it never becomes a local folder."""

from __future__ import annotations

import ast
import itertools
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.internals import COMMANDS, main

import penstock as ps
from penstock.testing import FileServer

SOURCE = Path(ps.__file__).parent
TOKENIZER = Path(__file__).parent.parent / "golden" / "modalities" / "tokenizers" / "bpe2"

# @ is the URL, of the suffix that stands behind it.
LINES = (
    "pack @.jsonl -o OUT/a.pbin --tokenizer TOKENIZER --executor inline",
    "pack DATA/a.jsonl -o @.pbin --tokenizer TOKENIZER --executor inline",
    "pack DATA/a.jsonl -o OUT/a.pbin --tokenizer @ --executor inline",
    "index @.jsonl",
    "index DATA/a.jsonl --index-path @.idx",
    "index @.jsonl --flavor energon",
    "index DATA/a.jsonl --flavor energon --index-path @.jsonl.idx",
    "info @.pbin",
    "head @.pbin",
    "head DATA/a.pbin --tokenizer @",
    "find @.pbin --text a --tokenizer TOKENIZER",
    "find DATA/a.pbin --text a --tokenizer @",
    "diff @.pbin DATA/a.pbin",
    "report @.pbin -o OUT/a.html",
    "report DATA/a.pbin -o @.html",
    "report @.yaml -o OUT/a.html",
    "report DATA/a.pbin -o OUT/a.html --tokenizer @",
    "report DATA/a.pbin -o OUT/a.html --excludes @.jsonl",
    "lineage @.pbin",
    "exclude @.pbin --indices DATA/one --reason asked --list OUT/list.jsonl",
    "exclude DATA/a.pbin --indices @.txt --reason asked --list OUT/list.jsonl",
    "purge @.pbin -o OUT/a.pbin --list DATA/list.jsonl",
    "diff DATA/a.jsonl @.jsonl",
    "head @ --pictures",
    "energon info @",
    "verify @.pbin",
    "verify @.pbin --write-manifest",
    "energon lint @",
    "repair @.pbin --write",
    "prepare @ --non-interactive --split-ratio 1,0,0 --sample-type CrudeWebdataset",
    "prepare-media @",
    "plan @.yaml --global-batch 1",
    "stage @ --hosts 1 --host 0",
    "stage @.yaml --hosts 1 --host 0",
    "explain @.yaml --step 0 --global-batch 1",
    "explain DATA/a.yaml --step 0 --global-batch 1 --state @.json",
    "merge @.pbin DATA/a.pbin -o OUT/a.pbin",
    "merge DATA/a.pbin DATA/b.pbin -o @.pbin",
    "merge DATA/a.jsonl DATA/a.jsonl -o @.jsonl",
    "merge DATA/mds DATA/mds2 -o @",
    "merge DATA/tars DATA/tars2 -o @",
    "shuffle @.pbin -o OUT/a.pbin --seed 1",
    "shuffle DATA/a.pbin -o @.pbin --seed 1",
    "shuffle DATA/a.jsonl -o @.jsonl --seed 1",
    "shuffle DATA/mds -o @ --seed 1",
    "split @.pbin -o OUT --ratio 1,1",
    "split DATA/a.pbin -o @ --ratio 1,1",
    "split DATA/a.jsonl -o @ --ratio 1,1",
    "split DATA/tars -o @ --ratio 1,1",
    "filter @.pbin -o OUT/a.pbin --min-tokens 1",
    "filter DATA/a.pbin -o @.pbin --min-tokens 1",
    "filter DATA/a.pbin -o OUT/a.pbin --indices @.txt",
    "split @.pbin -o OUT/a.pbin --only 0 --parts 2",
    "split DATA/a.pbin -o @.pbin --only 0 --parts 2",
    "convert @.pbin OUT/a.bin --to megatron",
    "convert @.csv OUT/mds --to mds",
    "convert DATA/a.pbin @.pbin",
    "convert DATA/a.pbin @ --to megatron",
    "convert DATA/a.pbin @ --to flat-tokens",
    "convert DATA/mds @ --to mds",
    "convert DATA/mds @ --to csv",
    "convert DATA/mds @ --to webdataset",
    "status @",
    "mount @ OUT",
    "view @ --no-open",
    "mount DATA/tars @",
    "demo @ --max-mb 0.1",
    "energon lint @",
    "energon prepare @ --non-interactive --split-ratio 1,0,0 --sample-type CrudeWebdataset",
    "modalities data create_raw_index @.jsonl",
    "modalities data create_raw_index DATA/a.jsonl --index_path @.idx",
    "modalities data pack_encoded_data @.yaml",
    "modalities data merge_packed_data @.pbin OUT/a.pbin",
    "modalities data merge_packed_data DATA/a.pbin @.pbin",
    "modalities data shuffle_tokenized_data --input_data_path DATA/a.pbin --output_data_path @.pbin",
    "modalities data shuffle_tokenized_data --input_data_path @.pbin --output_data_path OUT/a.pbin",
    "modalities data shuffle_jsonl_data --input_data_path DATA/a.jsonl --output_data_path @.jsonl",
    "modalities data create_shuffled_dataset_chunk --num_chunks 1 --chunk_id 0 --output_chunk_file_path @.pbin "
    "--input_file_list_path DATA/list --input_data_root_path DATA",
    "modalities data create_shuffled_jsonl_chunk --num_chunks 1 --chunk_id 0 --output_chunk_file_path OUT/a.jsonl "
    "--input_file_list_path DATA/list --input_data_root_path @",
    "modalities data prepare_instruction_tuning_data --config_file_path @.yaml",
)
_NO_PATH = {"compat", "energon", "modalities", "doctor", "completion", "cache"}
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "a.jsonl").write_text('{"text": "first"}\n{"text": "second"}\n')
    for name in ("a", "b"):
        with ps.create(folder / f"{name}.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
            for size in range(2, 6):
                writer.write({"tokens": [*range(1, size), 0]})
    for name in ("mds", "mds2"):
        with ps.create(folder / name, format="mds", columns={"n": "int"}) as writer:
            writer.write({"n": 1})
    for name in ("tars", "tars2"):
        with ps.create(folder / name, format="webdataset") as writer:
            for number in range(4):
                writer.write({"__key__": f"{name}{number}", "txt": b"text"})
    (folder / "a.yaml").write_text("penstock: 1\nstream: {path: a.pbin, window: {chunk: {length: 2}}}\n")
    (folder / "list").write_text("a.x\n")
    (folder / "one").write_text("0\n")
    return folder


@pytest.fixture(scope="module")
def server() -> object:
    with FileServer() as server:
        yield server.url


def is_energon(line: str) -> bool:
    """Whether it is a command of Energon's, whose refusals all end with 1."""
    return line.startswith("energon ")


def is_ok(line: str, status: int) -> bool:
    """Whether it is what a command may end with: done, refused, never a finding nor a fault of our own."""
    return status in (0, 1) if is_energon(line) else status not in (1, 70)


@pytest.fixture
def run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str, str], tuple[int, str]]:
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("PENSTOCK_REMOTE_TRIES", "1")
    names = {"DATA": str(data), "OUT": str(tmp_path / "out"), "TOKENIZER": str(TOKENIZER)}

    def run(line: str, url: str) -> tuple[int, str]:
        for name, value in names.items():
            line = line.replace(name, value)
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(line.replace("@", url)))
        said = capsys.readouterr().err
        assert os.listdir(here) == [], said
        assert not [name for _, folders, _ in os.walk(tmp_path) for name in folders if name.endswith(":")]
        return int(ended.value.code or 0), said

    return run


def test_every_command_is_here() -> None:
    assert {line.split()[0] for line in LINES} | _NO_PATH >= set(COMMANDS)


@pytest.mark.parametrize("line", LINES)
def test_an_object_store(line: str, run: Callable[[str, str], tuple[int, str]], s3_server: str) -> None:
    status, said = run(line, f"s3://bucket/urls/{next(_NUMBERS)}/x")
    assert is_ok(line, status), said
    is_output = any(part in line for part in ("-o @", "--index-path @", "convert DATA"))
    if is_output:  # written there, or refused for what it is
        assert status == 0 or "must be on this machine" in said
    else:
        assert status != 0
    assert "Traceback" not in said
    assert f"\n{said}".count("\npenstock: ") == (1 if status else 0)


@pytest.mark.parametrize("line", LINES)
def test_a_web_server(line: str, run: Callable[[str, str], tuple[int, str]], server: str) -> None:
    status, said = run(line, f"{server}/x")
    assert status != 0, said
    assert is_ok(line, status), said
    assert f"\n{said}".count("\npenstock: ") == 1, said


@pytest.mark.parametrize("url", ["s4://bucket/x", "htp://host/x", "s3:/bucket/x", "file:/x", "file://host/x"])
@pytest.mark.parametrize("line", LINES)
def test_a_slip(line: str, url: str, run: Callable[[str, str], tuple[int, str]]) -> None:
    status, said = run(line, url)
    assert status in ((1,) if is_energon(line) else (10, 13)), said
    assert f"\n{said}".count("\npenstock: ") == 1
    assert url.partition(":")[0] in said


@pytest.mark.parametrize("line", [line for line in LINES if "mount" not in line and "demo" not in line])
def test_a_local_url_is_a_path(line: str, run: Callable[[str, str], tuple[int, str]], tmp_path: Path) -> None:
    """What a plain path does, its URL does too; `mount` needs FUSE, and `demo` what a machine has."""
    plain = run(line, str(tmp_path / "out" / "a%20b" / "x"))
    made = _names(tmp_path / "out" / "a%20b")
    also = run(line, f"file://{tmp_path}/out/c%20d/x".replace("%20", "%2520"))
    assert also[0] == plain[0], (plain, also)
    assert _names(tmp_path / "out" / "c%20d") == made


def _names(folder: Path) -> list[str]:
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*"))


# --- nobody else looks at paths ------------------------------------------------------------------------------------

_LOOKS = {"abspath", "expanduser", "realpath"}
_MAY = {
    "_printable.py": "asks whether a path still leads where the user meant",
    "_settings.py": "finds the settings file of this user",
    "cli/_machine.py": "says on which file system the working folder and the cache folder are",
    "mix/repeats.py": "compares local paths with links resolved; URLs are left as they are",
    "recipe/places.py": "joins paths by the rules of recipes, and tells URLs apart itself",
}


def test_paths_are_looked_at_in_one_place() -> None:
    found: dict[str, list[int]] = {}
    for path in SOURCE.rglob("*.py"):
        name = str(path.relative_to(SOURCE))
        text = path.read_text()
        for node in ast.walk(ast.parse(text if any(look in text for look in _LOOKS) else "")):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in _LOOKS and not name.startswith("store/"):
                found.setdefault(name, []).append(node.lineno)
    assert found.keys() == _MAY.keys()
