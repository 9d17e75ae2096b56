"""Conversion keeps documents, and says so by a digest that the format does not change."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import DocumentDigest, code_to_set, current, is_staged_name, replace
from tests.internals import unfinished_mark as mark_path

import penstock as ps
from penstock.convert import document_runs, token_digest
from penstock.errors import ConfigError, Corrupt, NotFound, TooLarge, Unsupported
from penstock.testing import MemoryTokens
from penstock.testing.strategies import token_documents

GOLDEN = Path(__file__).parent.parent / "golden"
PBIN = GOLDEN / "modalities" / "pbin" / "docs.bpe2.pbin"
FORMATS = ("pbin", "flat-tokens", "megatron")


def docs_of(path: Path, **options: Any) -> list[list[int]]:
    source: Any = ps.open(path, **options)
    return [sample["tokens"].tolist() for sample in source]


def digest_of(docs: list[Any]) -> str:
    digest = DocumentDigest()
    tokens = np.array([token for doc in docs for token in doc], np.uint32)
    digest.update(tokens, np.array([len(doc) for doc in docs], np.int64))
    return digest.hexdigest()


def write(path: Path, docs: list[Any], format: str, **options: Any) -> Path:
    with ps.create(path, format=format, **{"token_bytes": 2, **options}) as writer:
        for doc in docs:
            writer.write({"tokens": doc})
    return path


def hidden(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".")]


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("joined", [False, True])
def test_what_the_side_file_contradicts_is_not_copied(tmp_path: Path, to: str, joined: bool) -> None:
    """A flipped bit between the places that a fingerprint samples: the side file still fits, the documents do not."""
    docs = [np.full(1000, number % 300 + 1) for number in range(600)]
    path = write(tmp_path / "a.pbin", docs, "pbin")
    if joined:  # a digest of version 2
        whole = path
        path = tmp_path / "b.pbin"
        ps.merge([whole], path)
    plain = path.read_bytes()
    for at in range(100_001, len(plain), 64 << 10):
        path.write_bytes(plain[:at] + bytes([plain[at] ^ 1]) + plain[at + 1 :])
        if ps.open(path).manifest is not None:  # type: ignore[attr-defined]
            break
    else:
        pytest.fail("no place that is not sampled")
    with pytest.raises(Corrupt, match="the documents differ from the side file"):
        ps.convert(path, tmp_path / "out", to=to)
    assert not [name for name in os.listdir(tmp_path) if "out" in name]
    with pytest.raises(Corrupt, match="differs from its side file"):
        ps.convert(path, tmp_path / "added", to=to, eos=("add", 0))  # other documents, of which it says nothing
    os.unlink(f"{path}.penstock")
    ps.convert(path, tmp_path / "added", to=to, eos=("add", 0))


# --- through every format ------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(lengths=st.lists(st.integers(0, 9), max_size=30), run_tokens=st.integers(1, 40))
def test_runs_hold_whole_documents_in_order(lengths: list[int], run_tokens: int) -> None:
    documents = [np.full(length, number, np.uint16) for number, length in enumerate(lengths)]
    source = MemoryTokens(documents, dtype=np.uint16)
    runs = list(document_runs(source, run_tokens))
    assert [n for _, doc_lengths in runs for n in doc_lengths.tolist()] == lengths
    tokens = [token for run, _ in runs for token in run.tolist()]
    assert tokens == [token for document in documents for token in document.tolist()]
    assert all(len(doc_lengths) == 1 or len(run) <= run_tokens for run, doc_lengths in runs)


@pytest.mark.parametrize("first", FORMATS)
@pytest.mark.parametrize("second", FORMATS)
def test_every_pair_of_formats_and_back(tmp_path_factory: pytest.TempPathFactory, first: str, second: str) -> None:
    @settings(deadline=None, max_examples=6)
    @given(docs=token_documents(max_docs=6, max_tokens=8), run_tokens=st.sampled_from([1, 5, 1 << 22]))
    def law(docs: list[Any], run_tokens: int) -> None:
        folder = tmp_path_factory.mktemp("pair")
        plain = [doc.tolist() for doc in docs]
        write(folder / "a", docs, first)
        with pytest.MonkeyPatch.context() as patch:
            replace(patch, "documents_run_tokens", run_tokens)
            there = ps.convert(folder / "a", folder / "b", to=second)
            back = ps.convert(folder / "b", folder / "c", to=first)
        assert there.digest == back.digest == digest_of(docs)
        assert docs_of(folder / "b") == docs_of(folder / "c") == plain
        assert (there.samples, there.tokens, there.lost) == (len(docs), sum(map(len, docs)), ())
        assert hidden(folder) == []
        for suffix in ("", ".bin", ".idx"):
            if (folder / f"a{suffix}").is_file():
                assert (folder / f"c{suffix}").read_bytes() == (folder / f"a{suffix}").read_bytes()

    law()


@pytest.mark.parametrize("to", FORMATS)
def test_from_formats_that_are_only_read(tmp_path: Path, to: str) -> None:
    raw, trove = GOLDEN / "raw-tokens", GOLDEN / "datatrove" / "seed_4byte.ds"
    seed = [[1, 2], [3, 4, 5], [6, 7, 8]]
    report = ps.convert(trove, tmp_path / "a", to=to)
    assert report.lost == ()
    made: Any = ps.open(tmp_path / "a")
    assert [sample["tokens"].tolist() for sample in made] == seed
    masks = [[sample["loss_mask"].tolist() for sample in one] for one in (made, ps.open(trove))]
    assert masks[0] == masks[1]
    options: dict[str, Any] = {"format": "raw-tokens", "layout": "uint16", "eos_id": 50_256}
    ps.convert(raw / "nanogpt" / "train.bin", tmp_path / "b", to=to, eos=("strip", 50_256), **options)
    assert docs_of(tmp_path / "b") == seed
    ps.convert(raw / "llmc" / "gpt2_train.bin", tmp_path / "c", to=to, eos_id=50_256)
    assert docs_of(tmp_path / "c") == [[50_256, *doc] for doc in seed]


def test_nothing_is_guessed_where_no_document_is_marked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="eos_id"):
        ps.convert(GOLDEN / "raw-tokens" / "llmc" / "gpt2_train.bin", tmp_path / "a.pbin")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", sorted(path.name for path in (GOLDEN / "modalities" / "legacy").glob("*.*bin")))
def test_older_layouts_become_todays(name: str, tmp_path: Path) -> None:
    old = GOLDEN / "modalities" / "legacy" / name
    report = ps.convert(old, tmp_path / "new.pbin", format="pbin")
    assert report.to == "pbin"
    assert docs_of(tmp_path / "new.pbin") == docs_of(old, format="pbin")
    new: Any = ps.open(tmp_path / "new.pbin")
    assert token_digest(new) == report.digest == digest_of(docs_of(old, format="pbin"))
    assert ps.verify(tmp_path / "new.pbin", depth="full") == []


def test_what_only_the_source_holds_is_said(tmp_path: Path) -> None:
    report = ps.convert(GOLDEN / "megatron" / "multimodal_int32", tmp_path / "a.pbin")
    assert report.lost == ("sequence borders inside documents", "modes")
    assert docs_of(tmp_path / "a.pbin") == [[1, 2, 3, 4, 5], [6, 7, 8]]


# --- EOS, width, options ---------------------------------------------------------------------------------------------


def test_eos_is_added_and_stripped_by_name(tmp_path: Path) -> None:
    bare, marked = [[1, 2], [], [3]], [[1, 2, 0], [0], [3, 0]]
    write(tmp_path / "a.zarr", bare, "flat-tokens")
    added = ps.convert(tmp_path / "a.zarr", tmp_path / "b.pbin", eos=("add", 0))
    assert docs_of(tmp_path / "b.pbin") == marked
    assert (added.eos, added.digest) == ("add 0", digest_of(marked))
    assert ps.open(tmp_path / "b.pbin").eos_id == 0
    assert ps.verify(tmp_path / "b.pbin", depth="full") == []
    stripped = ps.convert(tmp_path / "b.pbin", tmp_path / "c.zarr", eos=("strip", 0))
    assert docs_of(tmp_path / "c.zarr") == bare
    assert (stripped.eos, stripped.digest) == ("strip 0", digest_of(bare))
    assert ps.open(tmp_path / "c.zarr").eos_id is None
    kept = ps.convert(tmp_path / "b.pbin", tmp_path / "d.zarr")
    assert (kept.eos, ps.open(tmp_path / "d.zarr").eos_id) == ("keep", 0)


@pytest.mark.parametrize("eos", [("add", 9), ("add", 0), ("strip", 9)])
def test_what_contradicts_the_known_eos_is_refused(tmp_path: Path, eos: Any) -> None:
    write(tmp_path / "a.pbin", [[1, 0], [2, 0]], "pbin", eos_id=0)
    with pytest.raises(ConfigError, match="EOS"):
        ps.convert(tmp_path / "a.pbin", tmp_path / "b.zarr", eos=eos)
    assert sorted(os.listdir(tmp_path)) == ["a.pbin", "a.pbin.penstock"]


@pytest.mark.parametrize(("docs", "document"), [([[1, 0], [2]], 1), ([[1, 0], []], 1), ([[]], 0)])
def test_a_document_without_the_eos_to_strip_is_named(tmp_path: Path, docs: Any, document: int) -> None:
    write(tmp_path / "a.pbin", docs, "pbin")
    with pytest.raises(ConfigError, match=f"document {document} ") as caught:
        ps.convert(tmp_path / "a.pbin", tmp_path / "b.zarr", eos=("strip", 0))
    assert caught.value.path == str(tmp_path / "a.pbin")
    assert sorted(os.listdir(tmp_path)) == ["a.pbin", "a.pbin.penstock"]


def test_an_eos_that_nobody_recorded_is_not_added_again(tmp_path: Path) -> None:
    write(tmp_path / "a.pbin", [[1, 0], [2, 0]], "pbin")
    (tmp_path / "a.pbin.penstock").unlink()
    with pytest.raises(ConfigError, match="document 0 already ends"):
        ps.convert(tmp_path / "a.pbin", tmp_path / "b.zarr", eos=("add", 0))
    assert sorted(os.listdir(tmp_path)) == ["a.pbin"]


def test_rules_that_are_none(tmp_path: Path) -> None:
    for eos in (("add",), ("strip", -1), ("drop", 0), ("add", 1 << 32), ("add", "0"), ("add", 1, 2)):
        with pytest.raises(ConfigError, match="rule"):
            ps.convert(PBIN, tmp_path / "a.zarr", eos=eos)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(ConfigError, match="EOS"):
        ps.convert(tmp_path / "a.jsonl", tmp_path / "b.jsonl", eos=("add", 0))


def test_width_follows_ids(tmp_path: Path) -> None:
    def width(docs: list[list[int]], **options: Any) -> int | None:
        write(tmp_path / "a", docs, "flat-tokens", overwrite=True, token_bytes=None)
        return ps.convert(tmp_path / "a", tmp_path / "b.pbin", overwrite=True, **options).token_bytes

    assert width([[255]]) == 1
    assert width([[256]]) == 2
    assert width([[65_535]]) == 2
    assert width([[65_536]]) == 4
    assert width([[255]], eos=("add", 256)) == 2
    assert width([[255]], token_bytes=4) == 4
    assert width([[255]], vocab_size=50_000) == 2
    with pytest.raises(TooLarge, match="document 0"):
        width([[256]], token_bytes=1)
    write(tmp_path / "small.pbin", [[1], [2]], "pbin", token_bytes=4)
    ps.convert(tmp_path / "small.pbin", tmp_path / "small.zarr")
    back = ps.convert(tmp_path / "small.zarr", tmp_path / "back.pbin")
    assert back.token_bytes == 4  # the side file remembers
    assert (tmp_path / "back.pbin").read_bytes() == (tmp_path / "small.pbin").read_bytes()
    os.unlink(tmp_path / "small.zarr.penstock")
    assert ps.convert(tmp_path / "small.zarr", tmp_path / "narrow.pbin").token_bytes == 1


def test_ids_beyond_the_target_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.pbin", [[1], [1 << 31]], "pbin", token_bytes=4)
    for name, to in (("b.zarr", "flat-tokens"), ("b", "megatron")):
        with pytest.raises(TooLarge) as caught:
            ps.convert(tmp_path / "a.pbin", tmp_path / name, to=to)
        assert caught.value.found == 1 << 31
    assert sorted(os.listdir(tmp_path)) == ["a.pbin", "a.pbin.penstock"]


def test_options_reach_their_side(tmp_path: Path) -> None:
    source = write(tmp_path / "a.pbin", [[1, 2], [3]], "pbin")
    for split in ("train", "validation"):
        ps.convert(source, tmp_path / "b.zarr", split=split, chunk_tokens=2, zarr_format=3)
    both = tmp_path / "b.zarr"
    assert docs_of(both, split="validation") == [[1, 2], [3]]
    ps.convert(both, tmp_path / "c.pbin", split="validation")  # the target has no splits: the source's
    ps.convert(both, tmp_path / "d.zarr", source_split="train", split="validation")
    assert docs_of(tmp_path / "d.zarr", split="validation") == [[1, 2], [3]]
    ps.convert(source, tmp_path / "e", to="megatron", dtype="int64")
    assert ps.open(tmp_path / "e").header.kind.name == "int64"
    with pytest.raises(ConfigError, match="no_such"):
        ps.convert(source, tmp_path / "f.pbin", no_such=1)


def test_tokenizer_and_inputs_are_handed_on(tmp_path: Path) -> None:
    source = write(tmp_path / "a.pbin", [[1]], "pbin", tokenizer="mine", tokenizer_digest="ab")
    ps.convert(source, tmp_path / "b.zarr")
    manifest = ps.open(tmp_path / "b.zarr").manifest
    assert (manifest.tokenizer, manifest.tokenizer_digest) == ("mine", "ab")
    assert manifest.inputs == {"a.pbin": ps.open(source).fingerprint}


# --- refusals --------------------------------------------------------------------------------------------------------


def test_an_output_that_exists_is_refused_and_kept(tmp_path: Path) -> None:
    target = tmp_path / "c.pbin"
    target.write_bytes(b"mine")
    with pytest.raises(ConfigError, match="exists"):
        ps.convert(PBIN, target)
    assert target.read_bytes() == b"mine"
    ps.convert(PBIN, target, overwrite=True)
    assert target.read_bytes() == PBIN.read_bytes()
    with pytest.raises(ConfigError, match="exists"):
        ps.convert(PBIN, target)


def test_text_does_not_become_tokens_by_conversion(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(Unsupported, match="pack"):
        ps.convert(tmp_path / "a.jsonl", tmp_path / "a.pbin")
    assert not (tmp_path / "a.pbin").exists()


def test_samples_of_other_kinds(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text":"a"}\n{"text":"b"}\n')
    report = ps.convert(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert (report.samples, report.tokens, len(report.digest or "")) == (2, None, 32)
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()


def test_targets_that_are_not_clear(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--to"):
        ps.convert(PBIN, tmp_path / "out")
    for name, to in (("a.ds", None), ("a.npy", None), ("a", "datatrove")):
        with pytest.raises(Unsupported, match="read-only"):
            ps.convert(PBIN, tmp_path / name, to=to)
    assert ps.convert(PBIN, tmp_path / "m.bin").to == "megatron"
    with pytest.raises(NotFound):
        ps.convert(tmp_path / "gone.pbin", tmp_path / "x.pbin")


def test_damage_on_the_way_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = current("write_tokens")

    def damaged(*args: Any, **kwargs: Any) -> Any:
        manifest = copy(*args, **kwargs)
        data = bytearray((tmp_path / "b.pbin").read_bytes())
        data[20] ^= 1
        (tmp_path / "b.pbin").write_bytes(data)
        return manifest

    replace(monkeypatch, "write_tokens", damaged)
    with pytest.raises(Corrupt, match="differs from the source when read back"):
        ps.convert(PBIN, tmp_path / "b.pbin")


# --- killed ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """Three million tokens, so that a run that is killed has written something."""
    tokens = np.random.default_rng(5).integers(0, 60_000, 3_000_000).astype(np.uint16)
    with ps.create(tmp_path / "big.pbin", format="pbin", token_bytes=2) as writer:
        writer.write_run(tokens, np.full(3000, 1000))
    return tmp_path / "big.pbin"


def found_of(folder: Path, start: str) -> list[tuple[str, bytes]]:
    """Files of the dataset `start`, by what follows in their names."""
    files = sorted(str(path) for path in folder.rglob("*") if path.is_file())
    whole = str(folder / start)
    return [(file.removeprefix(whole), Path(file).read_bytes()) for file in files if file.startswith(whole)]


KILLED = (
    f"{code_to_set('documents_run_tokens', '1 << 18')}"
    + """
import os, signal, sys
import penstock as ps
def stop(done, text):
    if done >= 2000:
        os.kill(os.getpid(), getattr(signal, sys.argv[4]))
ps.convert(sys.argv[1], sys.argv[2], to=sys.argv[3], progress=stop)
"""
)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    ("to", "data"), [("pbin", "out"), ("flat-tokens", "out/encoded_tokens/0"), ("megatron", "out.bin")]
)
def test_killed_and_run_again_it_goes_on(big: Path, tmp_path: Path, to: str, data: str, how: str) -> None:
    options: dict[str, Any] = {"chunk_tokens": 1 << 18} if to == "flat-tokens" else {}
    ps.convert(big, tmp_path / "plain", to=to, **options)
    code = KILLED.replace("progress=stop", f"progress=stop, **{options}")
    command = [sys.executable, "-c", code, str(big), str(tmp_path / "out"), to, how]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode in (-getattr(signal, how), 1)
    assert list(tmp_path.glob("out*")) == []
    assert [name for name in hidden(tmp_path) if is_staged_name(name)]
    report = ps.convert(big, tmp_path / "out", to=to, **options)
    assert report.kept_bytes >= 1 << 20
    assert hidden(tmp_path) == []
    first, second = (
        sorted(p for p in tmp_path.rglob("*") if str(p).startswith(str(tmp_path / n))) for n in ("plain", "out")
    )
    assert [p.read_bytes() for p in first if p.is_file()] == [p.read_bytes() for p in second if p.is_file()]


def test_killed_before_it_was_verified(big: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out.zarr"

    def stop(*_: object) -> None:
        raise SystemError("killed")

    with monkeypatch.context() as patch:
        replace(patch, "verify_tokens", stop)
        with pytest.raises(SystemError):
            ps.convert(big, target)
    assert hidden(tmp_path) == [os.path.basename(mark_path(str(target)))]
    with pytest.raises(ConfigError, match="exists"):
        ps.convert(big, target, eos=("add", 0))  # that is another conversion
    before = target.stat().st_ino
    report = ps.convert(big, target)
    assert target.stat().st_ino == before
    assert report.digest == token_digest(ps.open(big))
    assert report.size_bytes > 0
    assert hidden(tmp_path) == []
    with pytest.raises(ConfigError, match="exists"):
        ps.convert(big, target)


def test_memory_is_bounded(tmp_path: Path) -> None:
    many = tmp_path / "many.pbin"
    with ps.create(many, format="pbin", token_bytes=2) as writer:
        run = np.zeros(1 << 22, np.uint16)
        for _ in range(48):
            writer.write_run(run, np.full(1 << 12, 1 << 10))
    code = (
        "import sys, penstock as ps\n"
        "ps.convert(sys.argv[1], sys.argv[2], to=sys.argv[3])\n"
        "print(*(line for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    for to in ("flat-tokens", "megatron"):
        (tmp_path / to).mkdir()
        command = [sys.executable, "-c", code, str(many), str(tmp_path / to / "m"), to]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        shutil.rmtree(tmp_path / to)  # it may stand in memory
        assert int(done.stdout.split()[1]) < 350 << 10  # kB; the data are 400 MB, and 800 MB as flat tokens
