"""`find` and `diff` of any samples in any format, held against brute force over what was written."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import purge
from tokenizers import Tokenizer

import penstock as ps
from penstock.errors import Excluded
from penstock.formats import BUILT_IN
from penstock.testing.token_files import write_token_files

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0")) or 60
BPE = Path(__file__).parent.parent / "golden/modalities/tokenizers/bpe2/tokenizer.json"
EOS = 0

Rows = Sequence[tuple[str, str]]
"""Key and text of each sample."""
Documents = Sequence[Sequence[int]]


def samples_of(rows: Rows) -> list[dict[str, Any]]:
    return [{"__key__": key, "txt": text} for key, text in rows]


def written(format: str, **options: Any) -> Callable[[Rows, Path], Path]:
    def write(rows: Rows, path: Path) -> Path:
        path = path.with_suffix(".jsonl") if format == "jsonl" else path
        with ps.create(path, format=format, **options) as writer:
            for sample in samples_of(rows):
                writer.write(sample)
        return path

    return write


def files_of_lines(rows: Rows, path: Path) -> Path:
    path.mkdir()
    text = [json.dumps(one, ensure_ascii=len(one["txt"]) % 2 == 0).encode() + b"\n" for one in samples_of(rows)]
    half = (len(rows) + 1) // 2
    (path / "a.jsonl").write_bytes(b"".join(text[:half]))
    (path / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(text[half:])))
    return path


def table_of(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(samples_of(rows), pa.schema([("__key__", pa.string()), ("txt", pa.string())]))


def parquet(rows: Rows, path: Path) -> Path:
    pq.write_table(table_of(rows), path.with_suffix(".parquet"), row_group_size=3)
    return path.with_suffix(".parquet")


def saved_to_disk(rows: Rows, path: Path) -> Path:
    path.mkdir()
    table = table_of(rows)
    with pa.OSFile(str(path / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=3)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    (path / "dataset_info.json").write_text("{}")
    return path


def chunks_of_litdata(
    path: Path, chunks: Sequence[Sequence[bytes]], tokens: Sequence[int | None], **config: Any
) -> Path:
    """What litdata writes, of items as their bytes: an index, and chunks of a number, offsets and items."""
    path.mkdir()
    listed: list[dict[str, Any]] = []
    for number, (items, dim) in enumerate(zip(chunks, tokens, strict=True)):
        at = np.cumsum([4 + 4 * (len(items) + 1), *map(len, items)])
        data = np.array([len(items), *at], "<u4").tobytes() + b"".join(items)
        name = f"chunk-0-{number}.bin"
        (path / name).write_bytes(data)
        listed.append({"chunk_bytes": len(data), "chunk_size": len(items), "dim": dim, "filename": name})
    plain = (
        "chunk_size",
        "compression",
        "compression_batch_size",
        "compression_level",
        "encryption",
        "ipc_compression",
    )
    said = {**dict.fromkeys(plain), "chunk_bytes": 200, "types": "json", **config}
    (path / "index.json").write_text(json.dumps({"chunks": listed, "config": said, "updated_at": "1795423206.8"}))
    return path


def halves(of: Sequence[Any]) -> list[Sequence[Any]]:
    half = (len(of) + 1) // 2
    return [some for some in (of[:half], of[half:]) if some]


LEAF = {"type": None, "context": None, "children_spec": []}


def litdata_rows(rows: Rows, path: Path) -> Path:
    def item(row: tuple[str, str]) -> bytes:
        parts = [one.encode() for one in row]
        return np.array([*map(len, parts)], "<u4").tobytes() + b"".join(parts)

    spec = [1, {"type": "builtins.dict", "context": json.dumps(["__key__", "txt"]), "children_spec": [LEAF, LEAF]}]
    chunks = [[item(row) for row in some] for some in halves(rows)]
    return chunks_of_litdata(path, chunks, [None] * len(chunks), data_format=["str", "str"],
                             data_spec=json.dumps(spec), item_loader="PyTreeLoader")  # fmt: skip


def litdata_tokens(documents: Documents, path: Path) -> tuple[Path, dict[str, Any]]:
    some = halves(documents)
    chunks = [[np.array(one, "<u2").tobytes() for one in part] for part in some]
    counts = [sum(map(len, part)) for part in some]
    chunks_of_litdata(path, chunks, counts, data_format=["no_header_numpy:5"], data_spec=json.dumps([1, LEAF]),
                      item_loader="TokensLoader")  # fmt: skip
    return path, {"eos_id": EOS}


COLUMNS = {"__key__": "str", "txt": "str"}
OF_ROWS: dict[str, Callable[[Rows, Path], Path]] = {
    "jsonl": written("jsonl"),
    "jsonl-files": files_of_lines,
    "mds": written("mds", columns=COLUMNS, size_limit=200),
    "json-shards": written("json-shards", columns=COLUMNS, size_limit=200),
    "csv": written("csv", columns=COLUMNS, size_limit=200),
    "tsv": written("tsv", columns=COLUMNS),
    "xsv": written("xsv", columns=COLUMNS, separator="|"),
    "webdataset": written("webdataset", maxcount=3),
    "folder": lambda rows, path: written("folder")([(f"{key}.txt", text) for key, text in rows], path),
    "parquet": parquet,
    "hf": saved_to_disk,
    "litdata": litdata_rows,
}


def tokens(format: str, **options: Any) -> Callable[[Documents, Path], tuple[Path, dict[str, Any]]]:
    def write(documents: Documents, path: Path) -> tuple[Path, dict[str, Any]]:
        path = path.with_suffix(".zarr" if format == "flat-tokens" else ".pbin" if format == "pbin" else ".idx")
        with ps.create(path, format=format, eos_id=EOS, **options) as writer:
            for one in documents:
                writer.write({"tokens": np.array(one, np.uint32)})
        return path, {}

    return write


def plain(suffix: str, **options: Any) -> Callable[[Documents, Path], tuple[Path, dict[str, Any]]]:
    def write(documents: Documents, path: Path) -> tuple[Path, dict[str, Any]]:
        path = path.with_suffix(suffix)
        np.array([*chain(*documents)], "<u2").tofile(path)
        if suffix == ".ds":
            np.cumsum([len(one) for one in documents]).astype("<u8").tofile(f"{path}.index")
        return path, options

    return write


def token_files(documents: Documents, path: Path) -> tuple[Path, dict[str, Any]]:
    half = (len(documents) + 1) // 2
    parts = [[list(one) for one in some] for some in (documents[:half], documents[half:]) if some]
    return write_token_files(path, parts, options={"eos_id": EOS}), {}


OF_TOKENS = {
    "pbin": tokens("pbin", token_bytes=2),
    "megatron": tokens("megatron", token_bytes=2),
    "flat-tokens": tokens("flat-tokens"),
    "raw-tokens": plain(".bin", layout="uint16", eos_id=EOS),
    "datatrove": plain(".ds", layout="uint16", eos_id=EOS),
    "token-files": token_files,
    "litdata": litdata_tokens,
}

texts = st.text('ab\\u/" \u00fc\U0001f600', max_size=5).filter(lambda text: text == text.strip())
rows_of = st.lists(st.tuples(st.integers(0, 99).map(lambda n: f"k{n}"), texts), min_size=1, max_size=9,
                   unique_by=lambda row: row[0])  # fmt: skip
documents_of = st.lists(st.lists(st.integers(5, 300), max_size=4).map(lambda ids: [*ids, EOS]), min_size=1, max_size=9)


def test_each_format_is_tried() -> None:
    of_numbers = {"levanter"}  # rows of arrays: no keys and no texts to find
    assert {*OF_ROWS, *OF_TOKENS} == {*BUILT_IN} - of_numbers


def as_stored(format: str, rows: Rows) -> Rows:
    """In byte order of their names where samples are files, whose names are their keys."""
    return sorted((f"{key}.txt", text) for key, text in rows) if format == "folder" else rows


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from([*OF_ROWS]), rows_of, texts.filter(bool), st.data())
def test_find(format: str, given_rows: Rows, text: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = OF_ROWS[format](given_rows, Path(folder, "a"))
        rows = as_stored(format, given_rows)
        key, wanted = data.draw(st.sampled_from(rows))
        asked: list[tuple[dict[str, Any], Callable[[str, str], bool]]] = [
            ({"text": text}, lambda _, one: text in one),
            ({"key": key}, lambda one, _: one == key),
            ({"where": f"txt == {wanted!r}"}, lambda _, one: one == wanted),
            ({"where": f"__key__ != {key!r}"}, lambda one, _: one != key),
        ]
        for question, fits in asked:
            expected = [n for n, row in enumerate(rows) if fits(*row)]
            report = ps.find(path, **question)
            assert [one.index for one in report.found] == expected, question
            assert [one.index for one in ps.find(path, **question, limit=2).found] == expected[:2], question
            if "text" not in question:
                assert [one.key for one in report.found] == [rows[n][0] for n in expected], question


@pytest.mark.parametrize("format", OF_TOKENS)
def test_the_id_that_ends_documents_is_no_text_of_theirs(tmp_path: Path, format: str) -> None:
    """Else a part of its name, such as "text", would be found in each of them."""
    assert "o" in Tokenizer.from_file(str(BPE)).decode([EOS], skip_special_tokens=False)
    path, options = OF_TOKENS[format]([[EOS], [81, EOS]], tmp_path / "a")
    report = ps.find(path, text="o", tokenizer=str(BPE), **options)
    assert [one.index for one in report.found] == [1]


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(st.sampled_from([*OF_TOKENS]), documents_of, st.data())
def test_find_in_documents(format: str, documents: Documents, data: st.DataObject) -> None:
    tokenizer = Tokenizer.from_file(str(BPE))
    said = [tokenizer.decode(list(one[:-1]), skip_special_tokens=False) for one in documents]
    text = data.draw(st.sampled_from([one for one in said if one] or ["a"]))[:2]
    with tempfile.TemporaryDirectory() as folder:
        path, options = OF_TOKENS[format](documents, Path(folder, "a"))
        report = ps.find(path, text=text, tokenizer=str(BPE), **options)
    assert [one.index for one in report.found] == [n for n, one in enumerate(said) if text in one]


def compared(a: Sequence[Any], b: Sequence[Any], one: Any, as_set: Any) -> None:
    """Hold two reports against what was written."""
    differing = [n for n, pair in enumerate(zip_longest(a, b)) if pair[0] != pair[1]]
    assert one.equal == (not differing)
    in_a, in_b = Counter(a), Counter(b)
    missing = ((in_a - in_b).total(), (in_b - in_a).total())
    for report in (one, as_set):
        assert (report.only_in_a, report.only_in_b) == missing
    assert as_set.equal == (in_a == in_b)
    assert one.num_reordered == (len(differing) if as_set.equal else 0)
    assert as_set.num_reordered == 0
    by_position = tuple(sum(n < len(x) for n in differing) for x in (a, b))
    if as_set.equal or by_position == missing:
        expected = [(n if n < len(a) else None, n if n < len(b) else None) for n in differing]
    else:
        only_a, only_b = {a.index(x) for x in in_a - in_b}, {b.index(x) for x in in_b - in_a}
        expected = [(n if n in only_a else None, n if n in only_b else None) for n in sorted(only_a | only_b)]
    assert [(d.index_a, d.index_b) for d in one.first_differences] == expected[:10]


def changed(of: Sequence[Any], another: Any, data: st.DataObject) -> list[Any]:
    """Some of them, in another order, and one that is another."""
    some = data.draw(st.permutations(of)) if data.draw(st.booleans()) else list(of)
    some = some[data.draw(st.integers(0, 1)) :] or list(of)
    if data.draw(st.booleans()):
        some[data.draw(st.integers(0, len(some) - 1))] = another
    return some


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from([*OF_ROWS]), st.sampled_from([*OF_ROWS]), rows_of, st.data())
def test_diff(format_a: str, format_b: str, rows: Rows, data: st.DataObject) -> None:
    others = changed(rows, ("k100", "another"), data)
    with tempfile.TemporaryDirectory() as folder:
        a = OF_ROWS[format_a](rows, Path(folder, "a"))
        b = OF_ROWS[format_b](others, Path(folder, "b"))
        reports = ps.diff(a, b), ps.diff(a, b, compare_as="set")
    compared(as_stored(format_a, rows), as_stored(format_b, others), *reports)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from([*OF_TOKENS]), st.sampled_from([*OF_TOKENS]), documents_of, st.data())
def test_diff_of_documents(format_a: str, format_b: str, documents: Documents, data: st.DataObject) -> None:
    others = changed(documents, [301, EOS], data)
    with tempfile.TemporaryDirectory() as folder:
        a, how_a = OF_TOKENS[format_a](documents, Path(folder, "a"))
        b, how_b = OF_TOKENS[format_b](others, Path(folder, "b"))
        opened = ps.open(a, **how_a), ps.open(b, **how_b)
        reports = ps.diff(*opened), ps.diff(*opened, compare_as="set")
    compared([*map(tuple, documents)], [*map(tuple, others)], *reports)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from([*OF_TOKENS]), documents_of, st.data())
def test_documents_are_excluded_and_purged(format: str, documents: Documents, data: st.DataObject) -> None:
    """The rest keeps its numbers and ids; what was purged has the rest alone, and a certificate names what left."""
    gone = sorted(data.draw(st.sets(st.sampled_from(range(len(documents))), min_size=1)))
    kept = [one for number, one in enumerate(documents) if number not in gone]
    with tempfile.TemporaryDirectory() as folder:
        path, options = OF_TOKENS[format](documents, Path(folder, "a"))
        assert ps.exclude(path, indices=gone, reason="r", **options).added == len(gone)
        opened = ps.open(path, **options)
        for number, one in enumerate(documents):
            if number in gone:
                with pytest.raises(Excluded):
                    opened[number]
            else:
                assert opened[number]["tokens"].tolist() == list(one)
        if not kept:
            return
        report = purge(path, Path(folder, "b.pbin"), **options)
        assert (report.samples, report.removed) == (len(kept), len(gone))
        assert [one["tokens"].tolist() for one in ps.open(report.path)] == [*map(list, kept)]
        said = json.loads(Path(report.certificate).read_text())
        assert [one["index"] for one in said["removed"]] == gone
        assert said["output"]["digest"] == report.digest_after != report.digest_before
