"""`merge`: all documents or lines, in order, as they are."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import (
    DocumentDigest,
    chunk,
    decode_manifest,
    documents_digest_v2,
    encode_manifest,
    is_joinable,
    is_staged,
    replace,
)
from tests.reshape.datasets import DOCUMENTS, LINES, documents_in, files_in, lines_in, sound, write_lines, write_tokens

import penstock as ps
from penstock import merge
from penstock.errors import ConfigError, Corrupt, Unsupported
from penstock.testing import FaultStore, count_operations
from penstock.testing.token_files import write_token_files


@settings(max_examples=15, deadline=None)
@given(st.lists(DOCUMENTS, min_size=1, max_size=4), st.sampled_from([1, 2, 4]))
def test_all_documents_in_order(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[list[int]]], token_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    paths = [write_tokens(folder / f"{n}.pbin", part, token_bytes) for n, part in enumerate(parts)]
    with pytest.MonkeyPatch.context() as patch:
        replace(patch, "digest_part_bytes", 64)
        report = merge(paths, folder / "all.pbin")
    expected = [document for part in parts for document in part]
    assert documents_in(folder / "all.pbin") == expected
    assert report.output.samples == len(expected)
    assert [count for _, count in report.inputs] == [len(part) for part in parts]
    assert sound(folder / "all.pbin")
    written = write_tokens(folder / "direct.pbin", expected, token_bytes)
    assert written.read_bytes() == (folder / "all.pbin").read_bytes()


@settings(max_examples=15, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=4), st.booleans())
def test_all_lines_in_order(tmp_path_factory: pytest.TempPathFactory, parts: list[list[str]], last: bool) -> None:
    folder = tmp_path_factory.mktemp("merge")
    paths = [write_lines(folder / f"{n}.jsonl", part or ["x"], last=last) for n, part in enumerate(parts)]
    merge(paths, folder / "all.jsonl")
    expected = [line for path in paths for line in path.read_bytes().split(b"\n") if line]
    assert lines_in(folder / "all.jsonl") == expected
    assert sound(folder / "all.jsonl")
    assert len(ps.open(folder / "all.jsonl")) == len(expected)


def test_the_parts_of_modalities(golden: Path, tmp_path: Path) -> None:
    parts = sorted((golden / "modalities" / "commands" / "parts").glob("*.pbin"))
    merge(parts, tmp_path / "all.pbin")
    wrong = golden / "modalities" / "pbin" / "merged.pbin"
    data_bytes = int.from_bytes(wrong.read_bytes()[:8], "little")
    assert (tmp_path / "all.pbin").read_bytes()[: 12 + data_bytes] == wrong.read_bytes()[: 12 + data_bytes]
    assert documents_in(tmp_path / "all.pbin") == [document for part in parts for document in documents_in(part)]


def test_other_formats(tmp_path: Path) -> None:
    a = write_tokens(tmp_path / "a.pbin", [[1, 2], [3]], 4)
    b = write_tokens(tmp_path / "b.zarr", [[4], [5, 6]], 4, format="flat-tokens")
    merge([a, b], tmp_path / "c.zarr")
    merge([b, a], tmp_path / "d.pbin")
    assert documents_in(tmp_path / "c.zarr") == [[1, 2], [3], [4], [5, 6]]
    assert documents_in(tmp_path / "d.pbin") == [[4], [5, 6], [1, 2], [3]]


def test_an_older_layout_becomes_todays(golden: Path, tmp_path: Path) -> None:
    old = golden / "modalities" / "legacy" / "hdr12_be_t2_off12.pbin"
    merge([old, old], tmp_path / "all.pbin")
    assert documents_in(tmp_path / "all.pbin") == documents_in(old) * 2


def test_widths(tmp_path: Path) -> None:
    narrow, wide = write_tokens(tmp_path / "a.pbin", [[1]], 2), write_tokens(tmp_path / "b.pbin", [[70_000]], 4)
    with pytest.raises(ConfigError, match=r"different token widths.*--token-bytes 4"):
        merge([narrow, wide], tmp_path / "c.pbin")
    with pytest.raises(ConfigError, match="can't be made narrower"):
        merge([narrow, wide], tmp_path / "c.pbin", token_bytes=2)
    merge([narrow, wide], tmp_path / "c.pbin", token_bytes=4)
    assert documents_in(tmp_path / "c.pbin") == [[1], [70_000]]
    merge([narrow], tmp_path / "d.pbin", token_bytes=4)
    assert ps.open(tmp_path / "d.pbin").schema.fields[0].dtype == "uint32"


def test_tokenizers(tmp_path: Path) -> None:
    a = write_tokens(tmp_path / "a.pbin", [[1]], tokenizer="one", tokenizer_digest="1", eos_id=1)
    b = write_tokens(tmp_path / "b.pbin", [[1]], tokenizer="two", tokenizer_digest="2", eos_id=1)
    c = write_tokens(tmp_path / "c.pbin", [[1]], tokenizer="one", tokenizer_digest="1", eos_id=2)
    unknown = write_tokens(tmp_path / "d.pbin", [[1]])
    with pytest.raises(ConfigError, match=r"different tokenizers: found two, expected one, as in .*--mix-tokenizers"):
        merge([a, b], tmp_path / "e.pbin")
    with pytest.raises(ConfigError, match="different EOS ids"):
        merge([a, c], tmp_path / "e.pbin")
    merge([a, a], tmp_path / "same.pbin")
    manifest = ps.open(tmp_path / "same.pbin").manifest
    assert (manifest.tokenizer, manifest.tokenizer_digest, manifest.eos_id) == ("one", "1", 1)
    for name, others in (("mixed", [a, b]), ("half", [a, unknown])):
        merge(others, tmp_path / f"{name}.pbin", mix_tokenizers=name == "mixed")
        assert ps.open(tmp_path / f"{name}.pbin").manifest.tokenizer_digest is None


def test_what_the_side_file_tells(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    a, b = write_tokens(tmp_path / "a.pbin", [[1]]), write_tokens(tmp_path / "x" / "a.pbin", [[9], []])
    merge([a, b], tmp_path / "c.pbin")
    manifest = ps.open(tmp_path / "c.pbin").manifest
    assert manifest.options["command"] == "merge"
    assert manifest.inputs == {"a.pbin": ps.open(a).fingerprint, "x/a.pbin": ps.open(b).fingerprint}
    assert (manifest.num_samples, manifest.num_tokens, manifest.max_token_id) == (3, 2, 9)


@pytest.mark.parametrize("name", ["all.pbin", "all.bin", "all.zarr"])
def test_digests_that_join_are_joined(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [[[1, 2], [3]], [[4, 5, 6]], [[7], [8]]]
    paths = [write_tokens(tmp_path / f"{number}.pbin", part, 2) for number, part in enumerate(parts)]
    for path, documents in zip(paths[:2], parts, strict=False):
        say_digest(path, documents)
    folder = write_token_files(tmp_path / "out", [parts[2][:1], parts[2][1:]])
    everything = [document for part in parts for document in part]
    passed: list[int] = []
    monkeypatch.setattr(DocumentDigest, "update", lambda _self, tokens, _lengths: passed.append(len(tokens)))
    merge([*paths[:2], folder], tmp_path / name)
    assert (ps.open(tmp_path / name).manifest.digest, passed) == (digest_of(everything), [])
    assert documents_in(tmp_path / name) == everything
    monkeypatch.undo()
    merge(paths, tmp_path / f"old-{name}")  # the third one has a digest of version 1
    assert not is_joinable(ps.open(tmp_path / f"old-{name}").manifest.digest)


def digest_of(documents: list[list[int]]) -> str:
    tokens = [token for document in documents for token in document]
    return documents_digest_v2(np.array(tokens, np.uint32), np.array([len(one) for one in documents], np.int64))


def say_digest(path: Path, documents: list[list[int]]) -> None:
    """Give a file's side file a digest of version 2."""
    side = path.with_name(path.name + ".penstock")
    manifest = decode_manifest(side.read_bytes())
    assert manifest is not None
    side.write_bytes(encode_manifest(dataclasses.replace(manifest, digest=digest_of(documents))))


def test_refusals(tmp_path: Path) -> None:
    a, lines = write_tokens(tmp_path / "a.pbin", [[1]]), write_lines(tmp_path / "a.jsonl", ["x"])
    for sources, target, error, what in (
        ([], "b.pbin", ConfigError, "nothing to merge"),
        ([a], "a.pbin", ConfigError, "would replace an input"),
        ([a, lines], "b.pbin", ConfigError, "can't be combined"),
        ([a], "b.jsonl", Unsupported, "can't hold token documents"),
        ([lines], "b.pbin", Unsupported, "can't hold lines"),
    ):
        with pytest.raises(error, match=what):
            merge(sources, tmp_path / target)
    for to in ("webdataset", "folder", "mds"):  # they hold samples, and a line is none of theirs
        with pytest.raises(Unsupported, match="can't hold lines"):
            merge([lines], tmp_path / "out", to=to)
    merge([a], tmp_path / "b.pbin")
    before = (tmp_path / "b.pbin").read_bytes()
    with pytest.raises(ConfigError, match="exists"):
        merge([a, a], tmp_path / "b.pbin")
    assert (tmp_path / "b.pbin").read_bytes() == before
    merge([a, a], tmp_path / "b.pbin", overwrite=True)
    assert documents_in(tmp_path / "b.pbin") == [[1], [1]]


def test_a_wrong_index_of_lines(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", ["x" * 50] * 40)
    ps.index(path)
    data = bytearray(path.read_bytes())
    end = data.index(b"\n", 1000)
    data[end : end + 1] = b" "  # a line end of line 14 is gone: the index names two halves of one line
    path.write_bytes(bytes(data))
    with pytest.raises(Corrupt, match="not a whole line"):
        merge([path], tmp_path / "b.jsonl")
    assert not (tmp_path / "b.jsonl").exists()


def test_nothing_is_left_after_a_fault(tmp_path: Path) -> None:
    source = write_tokens(tmp_path / "a.pbin", [[1, 2]] * 30)
    work = tmp_path / "out"

    def run(store: FaultStore) -> None:
        merge([source, source], work / "b.pbin", store=store)

    total = count_operations(run)
    for path in work.iterdir():
        path.unlink()
    for n in range(1, total + 1):
        try:
            run(FaultStore(n, "raise"))
        except OSError:
            assert "b.pbin" not in files_in(work) or documents_in(work / "b.pbin") == [[1, 2]] * 60
        for path in work.iterdir() if work.exists() else ():
            assert not is_staged(path.name)
            path.unlink()


def test_progress(tmp_path: Path) -> None:
    source = write_tokens(tmp_path / "a.pbin", [[1]] * 1000)
    seen: list[tuple[int, str]] = []
    merge([source] * 3, tmp_path / "b.pbin", progress=lambda done, text: seen.append((done, text)))
    assert seen == [(1000, "of 3,000"), (2000, "of 3,000"), (3000, "of 3,000")]


@pytest.mark.parametrize("one", ["in.pbin", Path("in.pbin")])
def test_one_path_is_no_list_of_datasets(one: str | Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"list of datasets: found in\.pbin"):
        merge(one, tmp_path / "out.pbin")  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", ["merge", "shuffle", "split", "filter", "chunk"])
def test_each_verb_takes_raw_tokens_by_their_layout(verb: str, tmp_path: Path) -> None:
    path, out = tmp_path / "r.bin", tmp_path / "o.pbin"
    np.array([5, 6, 0, 7, 0, 8, 9, 0], "<u2").tofile(path)
    opened: dict[str, Any] = {"layout": "uint16", "eos_id": 0}
    written = {
        "merge": lambda: [ps.merge([path], out, **opened).output],
        "shuffle": lambda: [ps.shuffle(path, out, seed=1, **opened)],
        "split": lambda: ps.split(path, tmp_path / "o", ratio=[1, 1], to="pbin", **opened),
        "filter": lambda: [ps.filter(path, out, indices=[0, 1, 2], **opened).output],
        "chunk": lambda: [chunk(path, out, chunk_id=0, num_chunks=1, **opened)],
    }[verb]()
    found = sorted(one["tokens"].tolist() for part in written for one in ps.open(part.path))
    assert found == [[5, 6, 0], [7, 0], [8, 9, 0]]
