"""Names of outputs and inputs that a shell can make: a slash at the end, bytes that are no UTF-8."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.internals import main

TOKENIZER = Path(__file__).parents[1] / "golden" / "modalities" / "tokenizers" / "bpe2" / "tokenizer.json"
ODD = os.fsdecode(b"caf\xe9")

VERBS = {
    "merge": ["merge", "IN", "IN", "-o", "OUT"],
    "shuffle": ["shuffle", "IN", "--seed", "1", "-o", "OUT"],
    "filter": ["filter", "IN", "--indices", "ix", "-o", "OUT"],
    "split --only": ["split", "IN", "--parts", "2", "--only", "0", "-o", "OUT"],
    "split": ["split", "IN", "--ratio", "1,1", "-o", "OUT"],
}


def run(*arguments: str | Path) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        main([str(one) for one in arguments])
    return end.value.code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("ix").write_text("0\n2\n")
    for name in ("in.jsonl", f"{ODD}.jsonl"):
        Path(name).write_text("".join(f'{{"text": "text {number}"}}\n' for number in range(6)))
        packed = Path(name).with_suffix(".pbin")
        assert run("pack", name, "-o", packed, "--tokenizer", TOKENIZER, "--eos", "<|eod|>", "--workers", "1") == 0
    return tmp_path


@pytest.mark.parametrize("suffix", [".pbin", ".jsonl", ".bin"])
def test_an_output_with_a_slash_at_its_end_is_that_output(folder: Path, suffix: str) -> None:
    if suffix == ".bin":
        assert run("convert", "in.pbin", "in.bin/") == 0
        assert not (folder / "in.bin").is_dir()
    for name, verb in VERBS.items():
        if name != "split":
            for out in (f"{name}{suffix}", f"{name}-slash{suffix}/"):
                assert run(*({"IN": f"in{suffix}", "OUT": out}.get(one, one) for one in verb)) == 0, name
            assert Path(f"{name}{suffix}").read_bytes() == Path(f"{name}-slash{suffix}").read_bytes()
    assert not [one for one in folder.rglob("*") if one.is_dir()]


@pytest.mark.parametrize("suffix", [".pbin", ".jsonl"])
@pytest.mark.parametrize("name", VERBS)
def test_a_name_that_is_no_utf8(folder: Path, name: str, suffix: str) -> None:
    out = f"{ODD}-out{suffix}"
    assert run(*({"IN": f"{ODD}{suffix}", "OUT": out}.get(one, one) for one in VERBS[name])) == 0
    assert run(*({"IN": f"in{suffix}", "OUT": f"plain{suffix}"}.get(one, one) for one in VERBS[name])) == 0
    files = [one for one in folder.rglob(f"{ODD}-out*") if one.is_file()] or [*Path(out).glob(f"*{suffix}")]
    assert files
    if name != "split":
        assert Path(out).read_bytes() == Path(f"plain{suffix}").read_bytes()


def test_index_and_convert_of_a_name_that_is_no_utf8(folder: Path) -> None:
    assert run("index", f"{ODD}.jsonl") == 0
    assert run("convert", f"{ODD}.pbin", f"{ODD}-2.bin") == 0
    assert run("verify", f"{ODD}.pbin") == 0
