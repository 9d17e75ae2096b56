"""A folder of token files is one source of documents and tokens, which opens its files when they are read."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import penstock as ps
from penstock.errors import ConfigError, Corrupt, NotFound, PrepareError, TooLarge, Unsupported
from penstock.formats.tokens.folder import FORMAT
from penstock.formats.tokens.folder.index import TokenFileEntry, encode_index, token_file_name
from penstock.store.local import LocalStore
from penstock.testing import CountingStore, TokenSourceLaws
from penstock.testing.token_files import write_token_files
from penstock.types import OpenOptions, Sample

EOS = 7
FILES = [[[300, 2, EOS], [EOS]], [], [[5, 0, 1, 4, EOS]], [[1, EOS], [2, 3, EOS]]]
DOCUMENTS = list(chain(*FILES))
TOKENS = list(chain(*DOCUMENTS))


class TestPbin(TokenSourceLaws):
    read: ClassVar[Any] = "auto"
    format: ClassVar = "pbin"
    dtype: ClassVar = np.uint16

    @pytest.fixture
    def source(self, tmp_path: Path) -> Any:
        return ps.open(write_token_files(tmp_path / "out", FILES, self.format), read=self.read)

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [{"tokens": np.array(document, self.dtype)} for document in DOCUMENTS]

    def test_empty_batch(self, source: Any) -> None:
        assert source.get_batch(np.empty(0, np.int64)) == {"tokens": []}


class TestWithoutMaps(TestPbin):
    read: ClassVar[Any] = "pread"


class TestMegatron(TestPbin):
    format: ClassVar = "megatron"


class TestFlatTokens(TestPbin):
    format: ClassVar = "flat-tokens"
    dtype: ClassVar = np.uint32


class TestAfterDocumentStarts(TestPbin):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Any:
        source: Any = ps.open(write_token_files(tmp_path / "out", FILES))
        assert len(source.doc_starts) == len(DOCUMENTS) + 1
        return source


@pytest.mark.parametrize("format", ["pbin", "megatron", "flat-tokens"])
@pytest.mark.parametrize("labels", [None, "shift", "start-zero"])
def test_windows_are_those_of_one_file(tmp_path: Path, format: str, labels: Any) -> None:
    options = {"eos_id": EOS}
    folder = write_token_files(tmp_path / "out", FILES, format, options=options)
    one = write_token_files(tmp_path / "one", [DOCUMENTS], format, options=options)
    for length in (1, 3, 5):
        opened: list[Any] = [ps.open(path) for path in (folder, one)]
        windows = [ps.Chunk(length, labels=labels)(source) for source in opened]
        batches = [each.get_batch(np.arange(len(each))[::-1]) for each in windows]
        assert batches[0].keys() == batches[1].keys()
        for name, column in batches[0].items():
            pairs = zip(column, batches[1][name], strict=True)
            assert all(np.array_equal(*pair) for pair in pairs), (name, length)


def test_opening_reads_the_index_alone(tmp_path: Path) -> None:
    write_token_files(tmp_path / "out", FILES)
    store = CountingStore(LocalStore())
    source = FORMAT.open(store, str(tmp_path / "out"), OpenOptions(vocab_size=301))
    assert (len(source), source.num_tokens, source.max_token_id, len(source.fingerprint)) == (5, 14, 300, 32)
    assert source.block_starts.tolist() == [0, 2, 2, 3, 5]
    assert (store.reads, source.files.opened) == (1, 0)
    assert repr(source).startswith("<token-files")
    assert pickle.loads(pickle.dumps(source)).files.opened == 0
    assert source.eos_id is None
    assert (store.reads, source.files.opened) == (2, 0)  # the folder's side file


@pytest.mark.parametrize("count", [100, 1000])
def test_opening_costs_the_same_for_any_number_of_files(tmp_path: Path, count: int) -> None:
    digest = "2:" + "0" * 32 + ":7"
    files = [TokenFileEntry(token_file_name(number, digest, "pbin"), 9, 7, 3, digest) for number in range(count)]
    (tmp_path / "index.json").write_bytes(encode_index("pbin", files))
    store = CountingStore(LocalStore())
    source = FORMAT.open(store, str(tmp_path), OpenOptions())
    assert (len(source), source.num_tokens, store.reads, source.files.opened) == (7 * count, 9 * count, 1, 0)


def test_windows_need_no_document_starts(tmp_path: Path) -> None:
    options = {"eos_id": EOS}
    source: Any = ps.open(write_token_files(tmp_path / "out", FILES, options=options))
    ps.Chunk(4, labels="shift")(source).get_batch([0, 1, 2])
    assert source._doc_starts.held() is None
    assert source[2]["tokens"].tolist() == FILES[2][0]
    assert source._doc_starts.held() is None


def test_one_call_a_file(tmp_path: Path) -> None:
    files = [[[number] * 50] for number in range(4)]
    source: Any = ps.open(write_token_files(tmp_path / "out", files), read="pread")
    calls: list[int] = []

    def counted(number: int, gather: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: calls.append(number) or gather(*args)

    for number in range(4):
        file = source.files.get(number)
        file.gather = counted(number, file.gather)
    rows = source.gather(np.array([100, 0, 150, 20, 120, 60, 10]), 5)
    assert rows[:, 0].tolist() == [2, 0, 3, 0, 2, 1, 0]
    assert sorted(calls) == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [8, 20])
def test_few_files_are_open(tmp_path: Path, count: int) -> None:
    source: Any = ps.open(write_token_files(tmp_path / "out", [[[number]] for number in range(count)]), read="mmap")
    source.files.most = 5
    before = len(os.listdir("/proc/self/fd"))
    assert source.gather(np.arange(count), 1)[:, 0].tolist() == [*range(count)]
    kept = source.tokens(0, 1)
    assert source.gather(np.arange(count), 1)[:, 0].tolist() == [*range(count)]
    assert kept.tolist() == [0]  # an array that was handed out keeps its file
    assert len(source.files) == 5
    assert len(os.listdir("/proc/self/fd")) - before <= 6
    assert Path("/proc/self/maps").read_text().count(str(tmp_path)) <= 6


def test_places_name_the_file_within(tmp_path: Path) -> None:
    folder = write_token_files(tmp_path / "out", FILES)
    source: Any = ps.open(folder)
    names = [one.path for one in source.listed.index.files]
    (extent,) = source.place_of(2).extents
    assert extent.path == str(folder / names[2])
    assert [one.path for one in source.token_extent(3, 11)] == [str(folder / names[at]) for at in (0, 2, 3)]
    located = ps.Sequential(ps.Chunk(3)(source)).locate(1)
    assert {one.path for one in located.extents or ()} == {str(folder / names[at]) for at in (0, 2)}


def test_fingerprint_follows_the_index(tmp_path: Path) -> None:
    first = ps.open(write_token_files(tmp_path / "a", FILES)).fingerprint
    assert ps.open(write_token_files(tmp_path / "b", FILES)).fingerprint == first
    others = [*FILES[:-1], [[1, EOS], [2, 4, EOS]]]
    assert ps.open(write_token_files(tmp_path / "c", others)).fingerprint != first


def test_what_the_folder_says_of_all(tmp_path: Path) -> None:
    options = {"eos_id": EOS, "tokenizer": "t", "tokenizer_digest": "d"}
    folder = write_token_files(tmp_path / "out", FILES, options=options)
    source: Any = ps.open(folder)
    assert (source.eos_id, source.tokenizer_digest, source.manifest.num_tokens) == (EOS, "d", 14)
    assert ps.open(folder, eos_id=EOS).recipe() == {
        "kind": "open",
        "format": "token-files",
        "path": str(folder),
        "eos_id": EOS,
    }
    (folder / ".penstock").unlink()
    bare: Any = ps.open(folder)
    assert (bare.eos_id, bare.tokenizer_digest, bare.manifest) == (EOS, "d", None)
    assert [sample["tokens"].tolist() for sample in bare] == DOCUMENTS


@pytest.mark.parametrize(
    ("other", "what"),
    [({"token_bytes": 4, "eos_id": EOS}, "token widths"), ({"eos_id": 3}, "EOS ids")],
)
def test_files_of_another_run_are_refused(tmp_path: Path, other: dict[str, Any], what: str) -> None:
    options = {"eos_id": EOS}
    folder = write_token_files(tmp_path / "out", FILES, options=options, side=False)
    wrong = write_token_files(tmp_path / "wrong", FILES, options=other)
    for path in wrong.glob("part-00002-*"):
        (folder / path.name).write_bytes(path.read_bytes())
    source: Any = ps.open(folder)
    assert source[0]["tokens"].tolist() == DOCUMENTS[0]
    with pytest.raises(Corrupt, match=f"different {what}"):
        source.tokens(0, 14)


def test_a_file_that_is_not_the_listed_one(tmp_path: Path) -> None:
    folder = write_token_files(tmp_path / "out", FILES)
    source: Any = ps.open(folder)
    name = source.listed.index.files[2].path
    (folder / name).unlink()
    with pytest.raises(NotFound, match=name):
        source.tokens(0, 14)
    assert source.tokens(0, 4).tolist() == TOKENS[:4]
    os.link(folder / source.listed.index.files[3].path, folder / name)
    assert source.tokens(0, 4).tolist() == TOKENS[:4]
    os.unlink(folder / name)
    other = write_token_files(tmp_path / "other", [[[1]]])
    (folder / name).write_bytes((other / ps_name(other)).read_bytes())
    with pytest.raises(Corrupt, match=r"differs from the one listed in index.json: found 1 tokens, expected 5"):
        source.tokens(0, 14)


def ps_name(folder: Path) -> str:
    source: Any = ps.open(folder)
    return source.listed.index.files[0].path


def test_document_starts_of_other_documents_are_refused(tmp_path: Path) -> None:
    folder = write_token_files(tmp_path / "out", FILES)
    source: Any = ps.open(folder)
    other = write_token_files(tmp_path / "other", [[[5, 0], [1, 4, EOS]]])  # as many tokens
    (folder / source.listed.index.files[2].path).write_bytes((other / ps_name(other)).read_bytes())
    with pytest.raises(Corrupt, match="found 2 documents, expected 1"):
        _ = source.doc_starts


def test_document_starts_once_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("penstock.formats.tokens.folder.source._SMALL_DOCUMENTS", 1)
    folder = write_token_files(tmp_path / "out", FILES)
    first: Any = ps.open(folder)
    starts = first.doc_starts
    second: Any = ps.open(folder)
    assert np.array_equal(second.doc_starts, starts)
    assert (first.files.opened, second.files.opened) == (3, 0)  # the empty one has none


def test_no_file_at_all(tmp_path: Path) -> None:
    source: Any = ps.open(write_token_files(tmp_path / "out", []))
    assert (len(source), source.num_tokens, source.doc_starts.tolist(), source.tokens(0, 0).size) == (0, 0, [0], 0)
    assert source.gather(np.empty(0, np.int64), 3).shape == (0, 3)
    assert source.eos_id is None
    assert source.max_token_id is None


def test_options(tmp_path: Path) -> None:
    folder = write_token_files(tmp_path / "out", FILES)
    with pytest.raises(TooLarge, match="found 300, expected 0 to 299"):
        ps.open(folder, vocab_size=300)
    with pytest.raises(ConfigError, match="split needs splits"):
        ps.open(folder, split="train")
    with pytest.raises(ConfigError, match="validate_hash"):
        ps.open(folder, validate_hash="xxh64")
    assert len(ps.open(folder / "index.json")) == 5
    assert len(ps.open(f"{folder}/")) == 5
    with pytest.raises(Unsupported, match="penstock pack"):
        ps.create(tmp_path / "new", format="token-files")


@pytest.mark.parametrize("lost", ["index", "work", "work-alone"])
def test_unfinished_work_is_refused(tmp_path: Path, lost: str) -> None:
    folder = tmp_path / "out"
    if lost != "work-alone":
        write_token_files(folder, FILES)
        (folder / "index.json").unlink()
    if lost != "index":
        (folder / ".work" / "abc").mkdir(parents=True)
        (folder / ".work" / "abc" / "plan").write_text("{}")
    ways: list[dict[str, Any]] = [{}, {"format": "token-files"}]
    for how in ways:
        with pytest.raises(PrepareError, match=r"unfinished.*penstock status"):
            ps.open(folder, **how)


def test_where_the_index_stands_it_decides(tmp_path: Path) -> None:
    folder = write_token_files(tmp_path / "out", FILES)
    (folder / ".work").mkdir()
    (folder / ".work" / "plan").write_text("{}")
    (folder / "part-00009-01234567.pbin").write_bytes(b"left by a stale worker")
    assert len(ps.open(folder)) == 5


def test_other_folders_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(Unsupported, match="no format recognizes this"):
        ps.open(tmp_path)
    with pytest.raises(NotFound):
        ps.open(tmp_path, format="token-files")


def test_it_is_no_mds_dataset_and_the_other_way_round(tmp_path: Path) -> None:
    folder = write_token_files(tmp_path / "out", FILES)
    with ps.create(tmp_path / "mds", format="mds", columns={"files": "str"}) as writer:
        writer.write({"files": "part-00000-01234567.pbin"})
    assert ps.open(tmp_path / "mds")[0] == {"files": "part-00000-01234567.pbin"}
    for name in ("mds", "csv", "json-shards"):
        with pytest.raises(Unsupported, match="token files"):
            ps.open(folder, format=name)
    with pytest.raises(Unsupported, match="an index of shards, not of token files"):
        ps.open(tmp_path / "mds", format="token-files")


def test_an_index_that_is_written_otherwise(tmp_path: Path) -> None:
    """Any JSON text of the same content is the same index, however long its first lines are."""
    import json

    folder = write_token_files(tmp_path / "out", FILES)
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({"files": index["files"], **index}, indent=4, sort_keys=True))
    assert [sample["tokens"].tolist() for sample in ps.open(folder)] == DOCUMENTS
