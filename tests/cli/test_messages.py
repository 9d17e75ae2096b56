"""Messages about inputs that users mistake for datasets."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.internals import main
from tokenizers import Tokenizer, models

import penstock as ps


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.err + printed.out


@pytest.fixture
def tokenizer(tmp_path: Path) -> Callable[[str], Path]:
    def make(eos: str) -> Path:
        folder = tmp_path / "tokenizer"
        folder.mkdir()
        Tokenizer(models.BPE({"a": 0, "<eos>": 1}, [])).save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
        return folder

    return make


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_a_list_in_one_line(
    name: str, tmp_path: Path, tokenizer: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text('[{"text": "a"}, {"text": "a"}]')
    status, message = run(capsys, "pack", path, "-o", tmp_path / "o.pbin", "--tokenizer", tokenizer("<eos>"))
    assert status == 14
    assert "`jq -c '.[]' IN > OUT.jsonl` turns a list into lines" in message
    if name.endswith(".jsonl"):
        status, message = run(capsys, "prepare", path)
        assert (status, "jq -c '.[]'" in message) == (6, True)
    if name.endswith(".json"):
        status, message = run(capsys, "info", path)
        assert status == 7
        assert "one JSON document, not one object per line" in message
        assert "several lines" not in message


def test_packed_tokens_are_not_packed_again(
    tmp_path: Path, tokenizer: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2) as writer:
        writer.write({"tokens": [0, 1]})
    command = ("pack", tmp_path / "a.pbin", "-o", tmp_path / "o.pbin", "--tokenizer", tokenizer("<eos>"))
    status, message = run(capsys, *command)
    assert status != 0
    assert "found packed tokens. `penstock convert` changes their format" in message


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz"])
def test_a_compressed_tar(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    member = tmp_path / "0.txt"
    member.write_text("text")
    with tarfile.open(tmp_path / name, "w:gz") as file:
        file.add(member, "0.txt")
    status, message = run(capsys, "info", tmp_path / name)
    assert status == 7
    assert "a tar compressed with gzip. Decompress it" in message


def test_an_eos_that_the_vocabulary_lacks(
    tmp_path: Path, tokenizer: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    command = ("pack", tmp_path / "a.jsonl", "-o", tmp_path / "o.pbin", "--tokenizer", tokenizer("</s>"))
    status, message = run(capsys, *command)
    assert status == 10
    assert "the EOS token '</s>' of the settings isn't in tokenizer.json" in message
    assert "--eos none" in message
    assert "new id 2" in message
    assert run(capsys, *command, "--eos", "</s>")[0] == 0
    assert ps.open(tmp_path / "o.pbin")[0]["tokens"].tolist()[-1] == 2
    assert run(capsys, *command, "--eos", "<eos>", "--overwrite")[0] == 0


@pytest.mark.parametrize("verb", ["mount", "info", "prepare"])
def test_a_folder_without_tar_shards(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "point").mkdir()
    assert run(capsys, "prepare", tmp_path / "a.jsonl")[0] == 0
    more = {"mount": [tmp_path / "point"], "info": ["--format", "webdataset"], "prepare": ["--split-ratio", "1,0,0"]}
    status, message = run(capsys, verb, tmp_path, *more[verb])
    assert (status, "no tar shards in this folder" in message, "isn't prepared" in message) == (9, True, False)


def test_prepare_without_a_sample_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    member = tmp_path / "0.txt"
    member.write_text("text")
    folder = tmp_path / "shards"
    folder.mkdir()
    with tarfile.open(folder / "a.tar", "w") as file:
        file.add(member, "0.txt")
    status, message = run(capsys, "prepare", folder, "--split-ratio", "1,0,0")
    assert status == 0
    assert "no dataset.yaml is written without --sample-type" in message
    assert not (folder / ".nv-meta" / "dataset.yaml").exists()
    again = ("prepare", folder, "--split-ratio", "1,0,0", "--overwrite")
    for more in (["--sample-type", "CrudeWebdataset"], []):
        status, message = run(capsys, *again, *more)
        assert (status, "no dataset.yaml" in message) == (0, False)
    (folder / ".nv-meta" / "dataset.yaml").unlink()
    status, message = run(capsys, "prepare", member, "--split-ratio", "1,0,0")
    assert (status, "not a folder of tar shards: found a file" in message, "no dataset.yaml" in message) == (
        9,
        True,
        False,
    )
    status, message = run(capsys, "head", folder, "--trust", "--pictures")
    assert status == 0


@pytest.mark.parametrize("verb", ["pack", "convert", "filter", "shuffle"])
def test_a_dry_run_of_a_part_has_one_text(
    verb: str, tmp_path: Path, tokenizer: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n')
    output = {
        "pack": ["-o", tmp_path / "o.pbin", "--tokenizer", tokenizer("<eos>")],
        "convert": [tmp_path / "o", "--to", "mds"],
        "filter": ["-o", tmp_path / "o.jsonl", "--where", "text == 'a'"],
        "shuffle": ["-o", tmp_path / "o.jsonl", "--seed", "1"],
    }[verb]
    status, message = run(capsys, verb, path, *output, "--dry-run", "--part", "0/2")
    assert status == 10
    assert "a dry run always covers the whole job" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"model": {"x": 1}}', "found YAML, not data"),
        ('{"path": "data"}', "found a recipe, not data. `penstock plan a"),
        ('{"text": "a"}\n{"text": "b"}\n', "found JSON objects, one per line, in a file called .y"),
        ("model: 1\n", "found YAML, not data"),
    ],
)
@pytest.mark.parametrize("name", ["a.yaml", "a.yml"])
def test_json_in_a_yaml_file(
    name: str, text: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    status, message = run(capsys, "info", tmp_path / name)
    assert (status, expected in message) == (7, True), message


@pytest.mark.parametrize("verb", ["info", "head", "energon preview", "report"])
def test_stored_code_does_not_run_and_is_not_needed_to_look_at_data(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    (tmp_path / "0.txt").write_text("hello")
    with tarfile.open(folder / "a.tar", "w") as file:
        file.add(tmp_path / "0.txt", "0.txt")
    assert run(capsys, "prepare", folder, "--split-ratio", "1,0,0")[0] == 0
    meta = folder / ".nv-meta"
    (meta / "sample_loader.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    sample_type = "sample_type: {__module__: megatron.energon, __class__: TextSample}\n"
    (meta / "dataset.yaml").write_text(sample_type + "sample_loader: sample_loader.py:sample_loader\n")
    status, message = run(capsys, *verb.split(), folder, *(["-o", tmp_path / "o.html"] if verb == "report" else []))
    assert status == 0, message
    assert not (tmp_path / "ran").exists()
    status, message = run(capsys, "energon", "lint", folder)
    assert (status != 0, "Pass --trust if you trust its author" in message) == (True, True)
