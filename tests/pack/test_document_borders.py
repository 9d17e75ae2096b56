"""Law: window labels follow the documents of the source, for every token source through every wrapper.

Expected values are computed by numpy from the documents alone.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.abc import SupportsDocumentFlags
from penstock.errors import ConfigError
from penstock.formats import BUILT_IN, get_format
from penstock.load.explain import explain_step, run_of
from penstock.load.plan import plan
from penstock.mix.subset import subset
from penstock.testing import MemoryTokens

EOS = 9
# EOS ids begin documents, are inside them, and end them or don't; a document is empty, one is EOS alone.
DOCS = [[9, 20, 9], [21, 22], [9], [], [23, 9, 24, 25], [26, 27, 28, 29, 9], [30], [9, 9, 31], [32, 33, 9, 34]]
LITDATA = [[1, 2, 3], [300], [7] * 20, [5, 6]]  # as the files of tests/golden/litdata hold them
LENGTH = 5

Docs = list[list[int]]


def labels(docs: Docs, kind: str, length: int = LENGTH) -> list[dict[str, Any]]:
    tokens = np.array([token for doc in docs for token in doc])
    owner = np.repeat(np.arange(len(docs)), [len(doc) for doc in docs])
    first = np.append(True, np.diff(owner) > 0)
    read = length + (kind == "shift")
    windows: list[dict[str, Any]] = []
    for start in range(0, len(tokens) - read + 1, length):
        begins = first[start : start + length].copy()
        real, begins[0] = begins.copy(), True
        cuts = np.flatnonzero(begins)
        made: dict[str, Any] = {
            "segment_ids": np.cumsum(begins),
            "positions": np.arange(length) - cuts[np.cumsum(begins) - 1],
            "cu_seqlens": np.append(cuts, length),
            "max_seqlen": int(np.diff(np.append(cuts, length)).max()),
        }
        inside = tokens[start : start + length]
        if kind == "shift":
            made |= {"tokens": inside, "inputs": inside, "targets": tokens[start + 1 : start + 1 + length]}
            made["loss_mask"] = ~first[start + 1 : start + 1 + length]
        else:
            before = np.append(0, inside[:-1])
            made |= {"tokens": inside, "targets": inside, "loss_mask": np.ones(length, bool), "is_seq_start": real}
            made["inputs"] = np.where(begins, 0, before)
        windows.append(made)
    return windows


def written(path: Path, docs: Docs, **options: Any) -> Any:
    with ps.create(path, **options) as writer:
        for doc in docs:
            writer.write({"tokens": np.array(doc, np.int64)})
    return ps.open(path)


def pbin(tmp: Path, docs: Docs) -> Any:
    return written(tmp / "a.pbin", docs, format="pbin", token_bytes=2, eos_id=EOS)


def pbin_alone(tmp: Path, docs: Docs) -> Any:
    pbin(tmp, docs)
    copy = tmp / "copy" / "a.pbin"
    copy.parent.mkdir()
    copy.write_bytes((tmp / "a.pbin").read_bytes())
    return ps.open(copy)


def megatron(tmp: Path, docs: Docs) -> Any:
    return written(tmp / "m", docs, format="megatron", dtype="uint16", eos_id=EOS)


def flat_tokens(tmp: Path, docs: Docs) -> Any:
    return written(tmp / "f.zarr", docs, format="flat-tokens", eos_id=EOS)


def directory(to: str) -> Callable[[Path, Docs], Any]:
    def make(tmp: Path, docs: Docs) -> Any:
        pbin(tmp, docs)
        ps.convert(tmp / "a.pbin", tmp / "directory", to=to, file_tokens=6)
        assert len(list((tmp / "directory").glob("*"))) > 2
        return ps.open(tmp / "directory")

    return make


def converted(tmp: Path, docs: Docs) -> Any:
    """A column of rows, converted to pbin."""
    parquet(tmp, docs)
    ps.convert(tmp / "a.parquet", tmp / "c.pbin", tokens_column="ids", documents="rows")
    return ps.open(tmp / "c.pbin", eos_id=EOS)


def datatrove(tmp: Path, docs: Docs) -> Any:
    np.array([token for doc in docs for token in doc], "<u2").tofile(tmp / "t.ds")
    np.cumsum([len(doc) for doc in docs]).astype("<u8").tofile(tmp / "t.ds.index")
    (tmp / "t.ds.metadata").write_text("gpt2|2\n8\n8 T")
    return ps.open(tmp / "t.ds", format="datatrove", eos_id=EOS)


def raw_with_table(tmp: Path, docs: Docs) -> Any:
    np.save(tmp / "a.npy", np.array([token for doc in docs for token in doc], np.uint16))
    ends = np.cumsum([len(doc) for doc in docs])
    lines = [f"{end - len(doc)},{end}\n" for doc, end in zip(docs, ends, strict=True) if doc]
    (tmp / "a.csv.gz").write_bytes(gzip.compress("".join(lines).encode()))
    return ps.open(tmp / "a.npy", eos_id=EOS)


def litdata(_: Path, __: Docs) -> Any:
    return ps.open(Path(__file__).parents[1] / "golden/litdata/tokens-uint16")


def parquet(tmp: Path, docs: Docs) -> Any:
    pq.write_table(pa.table({"ids": pa.array(docs, pa.list_(pa.int32()))}), tmp / "a.parquet", row_group_size=3)
    return ps.open(tmp / "a.parquet", tokens_column="ids", eos_id=EOS, documents="rows")


def jsonl(tmp: Path, docs: Docs) -> Any:
    (tmp / "a.jsonl").write_text("".join(json.dumps({"ids": doc}) + "\n" for doc in docs))
    return ps.open(tmp / "a.jsonl", tokens_column="ids")


def mds(tmp: Path, docs: Docs) -> Any:
    with ps.create(tmp / "mds", format="mds", columns={"ids": "ndarray:uint16"}) as writer:
        for doc in docs:
            writer.write({"ids": np.array(doc, np.uint16)})
    return ps.open(tmp / "mds", tokens_column="ids", eos_id=EOS, documents="rows")


SOURCES: dict[str, Callable[[Path, Docs], Any]] = {
    "pbin": pbin, "pbin alone": pbin_alone, "megatron": megatron, "flat-tokens": flat_tokens,
    "token-files": directory("pbin"), "token-files of megatron": directory("megatron"), "converted": converted,
    "datatrove": datatrove, "raw-tokens": raw_with_table, "litdata": litdata,
    "parquet": parquet, "jsonl": jsonl, "mds": mds,
    "no flags": lambda _, docs: MemoryTokens(docs, eos_id=EOS, dtype="uint16"),
}  # fmt: skip


def same(source: Any, docs: Docs) -> tuple[Any, Docs]:
    return source, docs


def fim(source: Any, docs: Docs) -> tuple[Any, Docs]:
    return ps.FillInTheMiddle(source, rate=0.0, prefix_id=60, middle_id=61, suffix_id=62, seed=1), docs


WRAPPERS: dict[str, Callable[[Any, Docs], tuple[Any, Docs]]] = {
    "none": same,
    "Take": lambda source, docs: (ps.Take(source, 1, len(docs)), docs[1:]),
    "Concat": lambda source, docs: (ps.Concat([source, source]), docs + docs),
    "Concat with another EOS": lambda source, docs: (
        ps.Concat([source, MemoryTokens(docs, eos_id=2, dtype=source.dtype.name)], mixed_tokenizers=True),
        docs + docs,
    ),
    "Subset": lambda source, docs: (subset(source, ["0%", "50%"]), docs[: len(docs) // 2]),
    "Take of Concat": lambda source, docs: (
        ps.Take(ps.Concat([source, source]), 2, len(docs) + 2),
        docs[2:] + docs[:2],
    ),
    "FillInTheMiddle": fim,
}  # fmt: skip


def check(windows: Any, expected: list[dict[str, Any]]) -> None:
    assert len(windows) == len(expected)
    order = np.arange(len(expected))[::-1]
    batch = windows.get_batch(order)
    for row, index in enumerate(order.tolist()):
        one = windows[index]
        for name, values in expected[index].items():
            np.testing.assert_array_equal(one[name], values, err_msg=f"{name} of window {index}")
            np.testing.assert_array_equal(batch[name][row], values, err_msg=f"{name} of window {index} in a batch")


@pytest.mark.parametrize("kind", ["shift", "start-zero"])
@pytest.mark.parametrize("name", SOURCES)
def test_labels_follow_documents(name: str, kind: Any, tmp_path: Path) -> None:
    docs, length = [doc for doc in DOCS if doc or name not in ("raw-tokens", "mds")], LENGTH
    if name == "litdata":
        docs, length = LITDATA, 3
    source = SOURCES[name](tmp_path, docs)
    assert [len(one["tokens"]) for one in source] == [len(doc) for doc in docs]
    for wrap in WRAPPERS.values():
        wrapped, expected = wrap(source, docs)
        check(ps.Chunk(length, labels=kind)(wrapped), labels(expected, kind, length))
    if name != "no flags":
        assert isinstance(source, SupportsDocumentFlags)
    expected = sorted(one["segment_ids"].tolist() for one in labels(docs, kind, length))
    shuffled: Any = ps.Shuffle(ps.Chunk(length, labels=kind)(source), seed=3)
    assert sorted(shuffled[place]["segment_ids"].tolist() for place in range(len(expected))) == expected


def test_every_token_format_is_in_the_law() -> None:
    assert {name for name in BUILT_IN if get_format(name).traits.tokens} <= set(SOURCES)


@pytest.mark.parametrize("name", ["pbin", "megatron", "flat-tokens", "token-files"])
def test_labels_follow_documents_with_an_exclude_list(name: str, tmp_path: Path) -> None:
    path: Any = SOURCES[name](tmp_path, DOCS).recipe()["path"]
    ps.exclude(path, indices=[4], reason="test")
    windows = ps.Chunk(LENGTH, labels="shift")(ps.open(path))
    for index, one in enumerate(labels(DOCS, "shift")):
        np.testing.assert_array_equal(windows[index]["segment_ids"], one["segment_ids"])
        np.testing.assert_array_equal(windows[index]["cu_seqlens"], one["cu_seqlens"])


def test_an_index_of_many_pieces_is_read_in_pieces(tmp_path: Path) -> None:
    """70,000 documents are 18 pieces of the table in the side file: a few windows don't decode the whole index."""
    docs = [[EOS, n % 50 + 10, EOS][: 1 + n % 3] for n in range(70_000)]
    source = pbin(tmp_path, docs)
    windows = ps.Chunk(64, labels="shift")(source)
    expected = labels(docs, "shift", 64)
    for index in (0, 100, len(windows) - 1):
        np.testing.assert_array_equal(windows[index]["segment_ids"], expected[index]["segment_ids"])
    chosen = np.arange(0, len(windows), 97)
    batch = windows.get_batch(chosen)
    np.testing.assert_array_equal(batch["segment_ids"], [expected[index]["segment_ids"] for index in chosen.tolist()])


@pytest.mark.parametrize("name", ["pbin", "megatron", "flat-tokens", "token-files", "parquet"])
def test_an_explicit_eos_id_cuts_there(name: str, tmp_path: Path) -> None:
    source = SOURCES[name](tmp_path, DOCS)
    tokens = np.array([token for doc in DOCS for token in doc])
    found = ps.Chunk(len(tokens) - 1, labels="shift", eos_id=EOS)(source)[0]
    np.testing.assert_array_equal(found["loss_mask"], tokens[:-1] != EOS)


@pytest.mark.parametrize("name", ["pbin", "megatron", "flat-tokens", "token-files"])
def test_another_eos_id_than_the_recorded_one_is_an_error(name: str, tmp_path: Path) -> None:
    path: Any = SOURCES[name](tmp_path, DOCS).recipe()["path"]
    assert ps.open(path, eos_id=EOS).eos_id == EOS
    with pytest.raises(ConfigError, match="records a different EOS id") as caught:
        ps.open(path, eos_id=3)
    assert (caught.value.found, caught.value.expected) == (3, EOS)


def test_rows_that_may_be_windows_ask_what_documents_are(tmp_path: Path) -> None:
    rows = [[1, 2, 9], [3, 9, 4, 5], [6, 9]]
    pq.write_table(pa.table({"ids": rows}), tmp_path / "a.parquet")

    def first(**options: Any) -> Any:
        source = ps.open(tmp_path / "a.parquet", tokens_column="ids", **options)
        return ps.Chunk(8, labels="shift")(source)[0]["segment_ids"].tolist()

    with pytest.raises(ConfigError, match="row 1 contains the EOS id") as caught:
        first(eos_id=9)
    assert "documents='rows'" in str(caught.value.hint)
    assert "--documents eos" in str(caught.value.hint)
    assert first(eos_id=9, documents="rows") == first() == [1, 1, 1, 2, 2, 2, 2, 3]
    assert first(eos_id=9, documents="eos") == [1, 1, 1, 2, 2, 3, 3, 3]
    with pytest.raises(ConfigError, match="unknown"):
        first(documents="eos")
    with pytest.raises(ConfigError, match="unknown value for documents"):
        first(documents="lines")
    with pytest.raises(ConfigError, match="can't be combined"):
        first(eos_id=9, documents="rows", one_document=True)
    plain: Any = ps.open(tmp_path / "a.parquet", tokens_column="ids", eos_id=9)
    assert ps.Chunk(3)(plain)[1]["tokens"].tolist() == [3, 9, 4]  # without labels nobody needs borders
    with pytest.raises(ConfigError, match="document 1 doesn't end with the EOS"):
        ps.convert(tmp_path / "a.parquet", tmp_path / "a.pbin", tokens_column="ids", eos_id=9)


def test_documents_is_for_columns(tmp_path: Path) -> None:
    pbin(tmp_path, DOCS)
    with pytest.raises(ConfigError, match="column of tokens"):
        ps.open(tmp_path / "a.pbin", documents="rows")


def test_rows_that_end_with_eos_need_no_choice(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"ids": [1, 9]}\n{"ids": [9, 9]}\n{"ids": [2, 3]}\n{"ids": []}\n{"ids": [9]}\n')
    source = ps.open(tmp_path / "a.jsonl", tokens_column="ids", eos_id=9)
    assert ps.Chunk(6, labels="shift")(source)[0]["segment_ids"].tolist() == [1, 1, 2, 2, 3, 3]


def test_raw_tokens_without_documents_have_places(tmp_path: Path) -> None:
    """`explain` and `plan` answer with token ranges, of samples that train without borders too."""
    np.arange(100, dtype="<u2").tofile(tmp_path / "raw.bin")
    windows = ps.Chunk(10)(ps.open(tmp_path / "raw.bin", format="raw-tokens", layout="uint16"))
    place = windows.place_of(3)
    assert place.documents is None
    assert [(one.offset_bytes, one.length_bytes) for one in place.extents or ()] == [(60, 20)]
    stream: Any = ps.Shuffle(windows, seed=1)
    for one in explain_step(run_of(stream, 2, 1, None), 0)["samples"]:
        assert one["extents"] == [[str(tmp_path / "raw.bin"), 20 * one["index"], 20]]
    assert plan(stream, global_batch=2, steps=3)
