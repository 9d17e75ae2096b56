"""Every option of every writer, by `-O`: honoured, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.internals import main

import penstock as ps

Cli = Callable[..., tuple[int, str]]
RECORDED = {"eos_id": "0", "tokenizer": "t", "tokenizer_digest": "d", "inputs": '{"a": "b"}', "options": '{"a": 1}'}
TOKENS = RECORDED | {"token_bytes": "4", "vocab_size": "70000"}
SHARDS = RECORDED | {"size_limit": "9kb", "compression": "zstd:3", "hashes": '["sha1"]', "columns": "id=int,text=str"}
TEXTS = SHARDS | {"newline": '"\\r\\n"'}
GOOD = {
    "pbin": TOKENS,
    "megatron": TOKENS | {"dtype": "int32", "modes": "[0]"},
    "flat-tokens": TOKENS
    | {"split": "train", "zarr_format": "2", "compressor": "zstd", "chunk_tokens": "8", "chunk_starts": "8"},
    "mds": SHARDS,
    "csv": TEXTS,
    "tsv": TEXTS,
    "xsv": TEXTS | {"separator": "|"},
    "json-shards": TEXTS,
    "webdataset": {
        "maxcount": "2",
        "maxsize": "9000",
        "pattern": "a/%d.tar",
        "split": "val",
        "shuffle_tars": "true",
        "dataset": "{}",
        "code": "{}",
    },
    "folder": {},
    "jsonl": {"flavor": "energon"},
}
BAD = ("[[]]", '{"a": [NaN]}', "1.5", "\ud800")
"""None of these is a value of any option but of a few, and then an odd one."""


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Converts to a format with an option, in an empty folder each time; the exit status, and what was said."""
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        writer.write({"tokens": [1, 2, 0]})
    ps.convert(iter([{"id": 1, "text": "x"}] * 3), tmp_path / "a.jsonl")
    count = 0

    def call(to: str, *options: str) -> tuple[int, str]:
        nonlocal count
        count += 1
        source = "a.pbin" if "token_bytes" in GOOD[to] else "a.jsonl"
        alone = ["--executor", "inline"] if to in ("mds", "csv", "tsv", "xsv", "json-shards") else []
        with pytest.raises(SystemExit) as ended:
            main(["convert", str(tmp_path / source), f"{tmp_path}/{count}/out", "--to", to, "--json", *alone, *options])
        said = capsys.readouterr()
        folder = tmp_path / str(count)
        assert not folder.exists() or not [path for path in folder.iterdir() if path.name.startswith(".")]
        return int(ended.value.code or 0), said.out + said.err

    return call


@pytest.mark.parametrize("to", GOOD)
def test_every_option(to: str, run: Cli) -> None:
    for name, good in GOOD[to].items():
        needed = ["-O", "separator=;"] if to == "xsv" and name != "separator" else []
        status, said = run(to, "-O", f"{name}={good}", *needed)
        assert status == 0, (name, said)
        for bad in BAD:
            status, said = run(to, "-O", f"{name}={bad}")
            assert status not in (1, 70), (name, bad, said)
            assert len(said.splitlines()) == 1 or said[0] in "{U", (name, bad, said)
    for unknown in ("nonesuch", "source", "overwrite", "trust", "part"):
        status, said = run(to, "-O", f"{unknown}=1")
        assert status not in (0, 1, 70), (unknown, said)


def test_an_option_of_a_writer_is_honoured_by_either_way(run: Cli) -> None:
    for options in (["-O", "token_bytes=4"], ["--token-bytes", "4"], ["-O", "token-bytes=4"]):
        assert json.loads(run("pbin", *options)[1])["token_bytes"] == 4
    status, said = run("pbin", "-O", "token_bytes=4", "--token-bytes", "2")
    assert (status, "given twice" in said) == (2, True)
    assert run("pbin", "-O", "token_bytes=null")[0] == 2
