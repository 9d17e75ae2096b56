"""Penstock against the real Modalities, in both directions, on fresh input.

They read what we write, we read what they write, and the same input gives the same bytes.
"""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fresh
import numpy as np
import peers
import pytest

import penstock as ps

BLOCKS = [(size, reuse) for size in (2, 3, 17, 128, 1000) for reuse in (True, False)]
GOOD_FILES = ("docs", "no_last_end", "crlf", "odd")
TOKENIZERS = ("small1", "bpe2", "framed2", "wide4")
TOKEN_BYTES = {"small1": 1, "bpe2": 2, "framed2": 2, "wide4": 4}


@dataclass(frozen=True, slots=True)
class Both:
    """The same input worked on by both sides, each in a folder of its own."""

    ours: Path
    theirs: Path
    tokenizers: dict[str, Path]
    rng: random.Random


def penstock(*arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run our command line."""
    command = [str(Path(sys.executable).parent / "penstock"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stderr
    return done


def peer_script(name: str, arguments: Any) -> Any:
    """Run one of the scripts with Modalities' interpreter."""
    return peers.run_script("modalities", peers.SCRIPTS / f"modalities_{name}.py", arguments)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, golden: Path) -> Both:
    """Fresh input, indexed and packed by both."""
    seed = int(os.environ.get("PENSTOCK_INTEROP_SEED", "0"))
    rng = random.Random(seed)
    root = tmp_path_factory.mktemp("modalities")
    inputs = root / "ours"
    inputs.mkdir()
    fresh.write_documents(rng, inputs / "docs.jsonl", 400)
    fresh.write_documents(rng, inputs / "no_last_end.jsonl", 40, last=False)
    fresh.write_documents(rng, inputs / "crlf.jsonl", 40, line_end=b"\r\n")
    fresh.write_odd(inputs / "odd.jsonl")
    fresh.write_faulty(rng, inputs / "faulty.jsonl", 60)
    shutil.copytree(inputs, root / "theirs")
    tokenizers = fresh.make_tokenizers(rng, root / "tokenizers", golden / "modalities" / "tokenizers")
    made = Both(root / "ours", root / "theirs", tokenizers, rng)
    run_theirs(made)
    run_ours(made)
    return made


def run_theirs(both: Both) -> None:
    """Their own command line: indexes first, then a packed file for each tokenizer."""
    commands = [["data", "create_raw_index", str(both.theirs / f"{name}.jsonl")] for name in GOOD_FILES]
    for name, folder in both.tokenizers.items():
        config = both.theirs / f"pack_{name}.yaml"
        # JSON is YAML.
        config.write_text(json.dumps(pack_config(both.theirs, folder, name, both.rng)))
        commands.append(["data", "pack_encoded_data", str(config)])
    errors = peer_script("cli", commands)
    assert errors == [None] * len(commands)


def pack_config(folder: Path, tokenizer: Path, name: str, rng: random.Random) -> dict[str, Any]:
    """Modalities' settings for packing docs.jsonl."""
    return {
        "settings": {
            "src_path": str(folder / "docs.jsonl"),
            "dst_path": str(folder / f"{name}.pbin"),
            "index_path": str(folder / "docs.idx"),
            "jq_pattern": ".text",
            "num_cpus": rng.choice((1, 2)),
            "eod_token": fresh.EOS,
            "processing_batch_size": rng.randint(1, 50),
            "raw_samples_queue_size": 300,
            "processed_samples_queue_size": 300,
        },
        "tokenizer": {
            "component_key": "tokenizer",
            "variant_key": "pretrained_hf_tokenizer",
            "config": {"pretrained_model_name_or_path": str(tokenizer), "padding": False, "truncation": False},
        },
    }


def run_ours(both: Both) -> None:
    """Our command line on the same input."""
    for name in GOOD_FILES:
        penstock("index", both.ours / f"{name}.jsonl")
    for name, folder in both.tokenizers.items():
        pack_ours(both, folder, both.ours / f"{name}.pbin", workers=1)


def pack_ours(both: Both, tokenizer: Path, out: Path, *, workers: int) -> None:
    """`penstock pack` of docs.jsonl."""
    penstock(
        *("pack", both.ours / "docs.jsonl", "-o", out, "--tokenizer", tokenizer),
        *("--eos", fresh.EOS, "--special-tokens", "default", "--workers", workers),
    )


@pytest.fixture(scope="module")
def read_by_them(both: Both, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents and windows of our packed files, as Modalities reads them."""
    folder = tmp_path_factory.mktemp("read-by-them")
    peer_script(
        "packed",
        {
            "documents": [[both.ours / f"{name}.pbin", folder / f"{name}.documents.npz"] for name in TOKENIZERS]
            + [[both.theirs / f"{name}.pbin", folder / f"{name}.own.npz"] for name in TOKENIZERS],
            "windows": [[both.ours / f"{name}.pbin", folder / f"{name}.windows.npz"] for name in TOKENIZERS],
            "blocks": BLOCKS,
        },
    )
    return folder


def raw_lines(path: Path) -> list[bytes]:
    """The file's lines without their ends."""
    lines = path.read_bytes().split(b"\n")
    return lines if lines[-1] else lines[:-1]


@pytest.mark.parametrize("name", GOOD_FILES)
def test_index_has_the_same_bytes(both: Both, name: str) -> None:
    assert (both.ours / f"{name}.idx").read_bytes() == (both.theirs / f"{name}.idx").read_bytes()


def test_they_read_our_index(both: Both) -> None:
    names = ["docs", "no_last_end", "crlf"]
    pairs = [[both.ours / f"{name}.jsonl", both.ours / f"{name}.idx"] for name in names]
    for name, lines in zip(names, peer_script("index", {"drop": [], "read": pairs}), strict=True):
        assert [base64.b64decode(line) for line in lines] == raw_lines(both.ours / f"{name}.jsonl")


@pytest.mark.parametrize("name", ["docs", "no_last_end", "crlf"])
def test_we_read_their_index(both: Both, name: str) -> None:
    source = ps.open(both.theirs / f"{name}.jsonl")
    expected = [json.loads(line) for line in raw_lines(both.theirs / f"{name}.jsonl")]
    assert [source[i] for i in range(len(source))] == expected


def test_dropped_lines_are_the_same(both: Both) -> None:
    theirs = both.theirs / "faulty.idx"
    peer_script("index", {"drop": [[both.theirs / "faulty.jsonl", theirs]], "read": []})
    penstock("index", both.ours / "faulty.jsonl", "--on-error", "skip")
    assert (both.ours / "faulty.idx").read_bytes() == theirs.read_bytes()


def test_both_refuse_faulty_lines(both: Both, tmp_path: Path) -> None:
    path = tmp_path / "faulty.jsonl"
    # A slow line after the faulty one makes Modalities wait for ever, so the faulty one is the last here.
    path.write_bytes(b'{"text": "good"}\n{"text": bad}\n')
    (error,) = peer_script("cli", [["data", "create_raw_index", str(path)]])
    assert str(error).startswith("ValueError")
    done = penstock("index", path, check=False)
    assert done.returncode != 0
    assert "line 2" in done.stderr
    assert not (tmp_path / "faulty.idx").exists()


@pytest.mark.parametrize("name", TOKENIZERS)
def test_packed_files_have_the_same_bytes(both: Both, name: str) -> None:
    assert (both.ours / f"{name}.pbin").read_bytes() == (both.theirs / f"{name}.pbin").read_bytes()


def test_packed_bytes_do_not_depend_on_workers(both: Both, tmp_path: Path) -> None:
    pack_ours(both, both.tokenizers["bpe2"], tmp_path / "again.pbin", workers=2)
    assert (tmp_path / "again.pbin").read_bytes() == (both.theirs / "bpe2.pbin").read_bytes()


@pytest.mark.parametrize("name", TOKENIZERS)
def test_they_read_our_documents(both: Both, read_by_them: Path, name: str) -> None:
    source = ps.open(both.ours / f"{name}.pbin")
    with np.load(read_by_them / f"{name}.documents.npz") as theirs:
        starts = np.concatenate([[0], np.cumsum(theirs["lengths"])])
        np.testing.assert_array_equal(source.doc_starts, starts)
        np.testing.assert_array_equal(source.tokens(0, source.num_tokens), theirs["tokens"])


@pytest.mark.parametrize("name", TOKENIZERS)
def test_we_read_their_documents(both: Both, read_by_them: Path, name: str) -> None:
    source = ps.open(both.theirs / f"{name}.pbin")
    assert source.dtype.itemsize == TOKEN_BYTES[name]
    with np.load(read_by_them / f"{name}.own.npz") as theirs:
        documents = np.split(theirs["tokens"], np.cumsum(theirs["lengths"])[:-1])
    assert len(source) == len(documents) == 400
    for i, document in enumerate(documents):
        np.testing.assert_array_equal(source[i]["tokens"], document)


@pytest.mark.parametrize(("block_size", "reuse"), BLOCKS)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_windows_are_the_same(both: Both, read_by_them: Path, name: str, block_size: int, reuse: bool) -> None:
    windows = ps.Chunk(block_size, overlap=int(reuse))(ps.open(both.theirs / f"{name}.pbin"))
    with np.load(read_by_them / f"{name}.windows.npz") as read:
        theirs = read[f"{block_size}_{reuse}"]
    assert len(windows) == len(theirs)
    np.testing.assert_array_equal(windows.get_batch(np.arange(len(theirs)))["tokens"], theirs)
    for i in {0, len(theirs) // 2, len(theirs) - 1}:
        np.testing.assert_array_equal(windows[i]["tokens"], theirs[i])


@pytest.mark.parametrize("name", TOKENIZERS)
def test_their_files_have_no_findings(both: Both, name: str) -> None:
    assert ps.verify(both.theirs / f"{name}.pbin", depth="full") == []


def test_our_files_have_no_findings(both: Both) -> None:
    for name in TOKENIZERS:
        assert ps.verify(both.ours / f"{name}.pbin", depth="full") == []


@pytest.mark.parametrize("token_bytes", [1, 2, 4])
def test_writers_give_the_same_bytes(tmp_path: Path, both: Both, token_bytes: int) -> None:
    rng = np.random.default_rng(both.rng.randrange(2**32))
    lengths = rng.integers(0, 300, 2500)
    lengths[-1] = 7
    tokens = rng.integers(0, 2 ** (8 * token_bytes), lengths.sum(), dtype=np.int64)
    tokens[:2] = 0, 2 ** (8 * token_bytes) - 1
    np.savez(tmp_path / "documents.npz", tokens=tokens, lengths=lengths)
    theirs, ours = tmp_path / "theirs.pbin", tmp_path / "ours.pbin"
    peer_script("packed", {"write": [[tmp_path / "documents.npz", theirs, token_bytes]]})
    with ps.create(ours, format="pbin", token_bytes=token_bytes) as writer:
        for document in np.split(tokens, np.cumsum(lengths)[:-1]):
            writer.write({"tokens": document})
    assert ours.read_bytes() == theirs.read_bytes()
