"""litdata's chunks, as litdata wrote them: documents of tokens, and samples in every kind of compression."""

from __future__ import annotations

import io
import json
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from tests.cli.called import called
from tests.internals import cli

import penstock as ps
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, UnsafeData, Unsupported
from penstock.testing import SourceLaws, TokenSourceLaws
from penstock.types import Sample

GOLDEN = Path(__file__).parents[2] / "golden" / "litdata"
DOCS = [[1, 2, 3], [300], [7] * 20, [5, 6]]
SAMPLES: list[Sample] = [
    {"n": n, "x": n / 2, "text": f"t{n}", "raw": b"r" * n, "ok": n > 1, "ids": np.arange(n + 1)} for n in range(5)
]
TABLES: list[Sample] = [{"n": n, "text": f"t{n}", "list": [n, n + 1]} for n in range(5)]


class TestTokens(TokenSourceLaws):
    name: ClassVar = "tokens-uint16"
    dtype: ClassVar[Any] = np.uint16

    @pytest.fixture
    def source(self) -> Any:
        return ps.open(GOLDEN / self.name)

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [{"tokens": np.array(doc, self.dtype)} for doc in DOCS]


def test_a_chunk_that_the_index_leaves_out_is_named(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "tokens-uint16", tmp_path / "set"))
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**index, "chunks": []}))
    (finding,) = ps.verify(folder, format="litdata")
    assert (finding.code, finding.severity) == ("litdata.unlisted", "warning")
    assert finding.path == str(folder / "chunk-0-0.bin")


class TestManyChunks(TestTokens):
    name: ClassVar = "tokens-int32"
    dtype: ClassVar[Any] = np.uint32


class TestCompressedChunks(TestTokens):
    name: ClassVar = "tokens-int64-zstd"
    dtype: ClassVar[Any] = np.uint32


class TestSamples(SourceLaws):
    name: ClassVar = "samples"
    rows: ClassVar = SAMPLES

    @pytest.fixture
    def source(self) -> Any:
        return ps.open(GOLDEN / self.name)

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return self.rows


class TestZstdByChunk(TestSamples):
    name: ClassVar = "samples-chunk"


class TestZstdByBatch(TestSamples):
    name: ClassVar = "samples-batch"


class TestZstdBySample(TestSamples):
    name: ClassVar = "samples-sample"


class TestArrowRows(TestSamples):
    name: ClassVar = "samples-arrow"
    rows: ClassVar = TABLES


@pytest.mark.parametrize(
    "name", sorted(path.name for path in GOLDEN.iterdir() if path.is_dir() and "pickle" not in path.name)
)
def test_nothing_is_wrong_with_what_litdata_writes(name: str) -> None:
    for depth in ("quick", "sample", "full"):
        assert ps.verify(GOLDEN / name, depth=depth) == []


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()))
def test_info_is_text_of_each(name: str) -> None:
    said = CliRunner().invoke(cli, ["info", str(GOLDEN / name)])
    assert said.exit_code == 0, said.output
    assert "litdata" in said.stdout


def test_documents_are_converted(tmp_path: Path) -> None:
    for name in ("tokens-uint16", "tokens-int32", "tokens-int64-zstd"):
        report = ps.convert(GOLDEN / name, tmp_path / f"{name}.pbin")
        assert (report.samples, report.tokens) == (4, 26)
        assert [one["tokens"].tolist() for one in ps.open(tmp_path / f"{name}.pbin")] == DOCS


def test_samples_and_their_columns_of_ids_are_converted(tmp_path: Path) -> None:
    ps.convert(GOLDEN / "samples", tmp_path / "ids.pbin", tokens_column="ids")
    assert [one["tokens"].tolist() for one in ps.open(tmp_path / "ids.pbin")] == [[*range(n + 1)] for n in range(5)]
    report = ps.convert(GOLDEN / "samples-batch", tmp_path / "mds", to="mds")
    assert (report.samples, [one["text"] for one in ps.open(tmp_path / "mds")]) == (5, ["t0", "t1", "t2", "t3", "t4"])


def test_blocks_without_documents_are_one_or_end_at_the_eos() -> None:
    one: Any = ps.open(GOLDEN / "tokens-int32", one_document=True)
    assert one.doc_starts.tolist() == [0, 26]
    found: Any = ps.open(GOLDEN / "tokens-int32", one_document=True, eos_id=300)
    assert found.doc_starts.tolist() == [0, 4, 26]


def test_options_that_the_items_have_no_use_for_are_refused() -> None:
    for name, options, match in (
        ("samples", {"eos_id": 0}, "samples, not tokens"),
        ("tokens-uint16", {"columns": ["a"]}, "no columns"),
        ("tokens-uint16", {"tokens_column": "a"}, "has no columns"),
        ("samples", {"columns": ["a"]}, "no column 'a'"),
    ):
        given: Any = options
        with pytest.raises(ConfigError, match=match):
            ps.open(GOLDEN / name, **given)


def test_pickles_are_never_read_and_can_be_left_out() -> None:
    source: Any = ps.open(GOLDEN / "samples-pickle")
    with pytest.raises(UnsafeData, match=r"column 'what' holds pickles.* --columns n "):
        _ = source[0]
    assert ps.open(GOLDEN / "samples-pickle", columns=["n"])[1] == {"n": 1}


def write_chunk(folder: Path, leaves: dict[str, str], rows: list[list[bytes]]) -> None:
    """Write one chunk and its index, as litdata lays them out."""
    items = [struct.pack(f"<{len(row)}I", *map(len, row)) + b"".join(row) for row in rows]
    starts = np.cumsum([4 * (len(items) + 2), *map(len, items)]).tolist()
    data = struct.pack(f"<{len(starts) + 1}I", len(items), *starts) + b"".join(items)
    folder.mkdir()
    (folder / "chunk-0-0.bin").write_bytes(data)
    leaf = {"type": None, "context": None, "children_spec": []}
    spec = [1, {"type": "builtins.dict", "context": json.dumps(list(leaves)), "children_spec": [leaf] * len(leaves)}]
    of_items = {"data_format": list(leaves.values()), "data_spec": json.dumps(spec), "item_loader": "PyTreeLoader"}
    chunks = [{"filename": "chunk-0-0.bin", "chunk_bytes": len(data), "chunk_size": len(items), "dim": None}]
    index = {"chunks": chunks, "config": {"compression": None, "encryption": None, "chunk_bytes": 1 << 20, **of_items}}
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("leaf", ["pickle", "graph", "json", "no_header_numpy:99", "no_header_tensor:x", "to_come"])
def test_columns_that_cannot_be_read_are_named_and_left_out(tmp_path: Path, leaf: str) -> None:
    path = tmp_path / "set"
    leaves = {"n": "int", "bad": leaf, "text": "str"}
    write_chunk(path, leaves, [[struct.pack("<q", n), b"?", b"t%d" % n] for n in range(3)])
    refused = called("convert", path, tmp_path / "all.jsonl")
    assert (refused.returncode, "column 'bad'" in refused.stderr) == ((12 if leaf in ("pickle", "graph") else 7), True)
    assert " take --columns n,text [" in refused.stderr
    for columns in ("n,text", "text=,n="):
        target = tmp_path / f"{len(columns)}.jsonl"
        converted = called("convert", path, target, "--columns", columns.replace("=", ""))
        assert converted.returncode == 0, converted.stderr
        assert [json.loads(line) for line in target.read_text().splitlines()] == [
            {"n": n, "text": f"t{n}"} for n in range(3)
        ]
    shown = called("head", path, "--columns", "n,text", "-n", "1")
    assert shown.stdout == '0: {"n": 0, "text": "t0"}\n'
    assert called("info", path).returncode == 0


def test_a_column_with_an_encoding_is_read_without_the_others(tmp_path: Path) -> None:
    path, target = tmp_path / "set", tmp_path / "mds"
    write_chunk(path, {"n": "int", "bad": "pickle"}, [[struct.pack("<q", n), b"?"] for n in range(3)])
    converted = called("convert", path, target, "--to", "mds", "--columns", "n=int32")
    assert (converted.returncode, "'bad'" in converted.stdout + converted.stderr) == (0, True)
    assert [one["n"] for one in ps.open(target)] == [0, 1, 2]


def test_lists_of_jpeg_files_are_read_and_converted(tmp_path: Path) -> None:
    pictures = []
    for level in (10, 200):
        file = io.BytesIO()
        Image.new("RGB", (8, 6), (level, 0, 0)).save(file, "JPEG")
        pictures.append(file.getvalue())
    path = tmp_path / "set"
    rows = [pictures, pictures[1:]]
    stored = [struct.pack(f"<{len(row) + 1}I", len(row), *map(len, row)) + b"".join(row) for row in rows]
    write_chunk(path, {"n": "int", "images": "jpeg_array"}, [[bytes(8), value] for value in stored])
    assert [one["images"] for one in ps.open(path)] == rows
    assert called("convert", path, tmp_path / "tars", "--to", "webdataset").returncode == 0
    with tarfile.open(next((tmp_path / "tars").glob("*.tar"))) as tar:
        found = {one.name: tar.extractfile(one).read() for one in tar if one.name.endswith("jpg")}  # pyright: ignore
    assert sorted(found.values(), key=len) == sorted([*pictures, pictures[1]], key=len)
    for number, damaged in enumerate((b"", bytes(4), stored[0][:-1])):
        write_chunk(tmp_path / f"damaged{number}", {"images": "jpeg_array"}, [[damaged]])
        with pytest.raises(Corrupt, match=r"chunk-0-0\.bin: a sample is damaged at byte 12: found item 0"):
            _ = ps.open(tmp_path / f"damaged{number}")[0]


def edited(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        index = json.loads((path / "index.json").read_text())
        change(index)
        (path / "index.json").write_text(json.dumps(index, sort_keys=True))

    return edit


def cut(name: str, end: int | None, start: int = 0, put: bytes = b"") -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        data = (path / name).read_bytes()
        rest = data[start + len(put) : end] if put else data[start:end]
        (path / name).write_bytes(data[:start] + put + rest)

    return edit


def config(**changes: Any) -> Callable[[Path], None]:
    return edited(lambda index: index["config"].update(changes))


def chunk(**changes: Any) -> Callable[[Path], None]:
    return edited(lambda index: index["chunks"][0].update(changes))


def first_bytes(at: int, data: bytes) -> Callable[[Path], None]:
    return cut("chunk-0-0.bin", None, at, data)


BROKEN: dict[str, tuple[str, Callable[[Path], None], type[PenstockError], str]] = {
    "a chunk cut off": ("samples", cut("chunk-0-0.bin", -1), Corrupt, "a different size"),
    "another count": ("samples", first_bytes(0, b"\x09"), Corrupt, "number of items"),
    "offsets that fall": ("samples", first_bytes(8, b"\xff\xff"), Corrupt, "offsets"),
    "frames of version 2": ("samples-batch", first_bytes(8, b"\x02"), Unsupported, "version 2"),
    "a frame elsewhere": ("samples-batch", first_bytes(24, b"\x01"), Corrupt, "offsets"),
    "a table that is none": ("samples-arrow", cut("chunk-0-0.bin", None, -20, b"X" * 8), Corrupt, "table"),
    "encryption": ("samples", config(encryption={"level": "chunk"}), Unsupported, "encrypted"),
    "a new key": ("samples", config(layout=2), Unsupported, "layout"),
    "a new level": ("samples-batch", config(compression_level="x"), Unsupported, "level x"),
    "a new loader": ("samples", config(item_loader="X"), Unsupported, "loader"),
    "a new tree": ("samples", config(data_spec="[2, {}]"), Unsupported, "version of the tree"),
    "a pickled tree": ("samples", config(data_spec="gASV"), Unsupported, "not JSON"),
    "a tree of another size": ("samples", config(data_format=["int"]), Corrupt, "number of values"),
    "a format to come": (
        "samples",
        config(data_format=["int", "float", "str", "new", "bool", "int"]),
        Unsupported,
        "new",
    ),
    "a name outside": ("samples", chunk(filename="../x.bin"), UnsafeData, "points outside"),
    "sizes that lie": ("tokens-uint16", chunk(dim=9), Corrupt, "contradict"),
    "floats as tokens": ("tokens-uint16", config(data_format=["no_header_numpy:9"]), Unsupported, "no token ids"),
    "objects as tokens": ("tokens-uint16", config(data_format=["no_header_numpy:14"]), Unsupported, "unknown"),
    "no JSON": ("samples", cut("index.json", 50), Corrupt, "not JSON"),
}


def read_all(path: Path) -> None:
    source: Any = ps.open(path, format="litdata")
    for index in range(len(source)):
        _ = source[index]


@pytest.mark.parametrize("kind", BROKEN)
def test_damage_and_unknown_versions_are_named(tmp_path: Path, kind: str) -> None:
    name, edit, error, match = BROKEN[kind]
    path = tmp_path / "set"
    shutil.copytree(GOLDEN / name, path, copy_function=shutil.copyfile)
    edit(path)
    with pytest.raises(error, match=match):
        read_all(path)
    findings = ps.verify(path, format="litdata", depth="full")
    assert findings
    assert {one.severity for one in findings} == {"error"}


def test_an_unfinished_dataset_says_so(tmp_path: Path) -> None:
    (tmp_path / "0.index.json").write_text("{}")
    with pytest.raises(NotFound, match=r"optimize\(\)"):
        ps.open(tmp_path, format="litdata")


def test_negative_ids_are_no_tokens(tmp_path: Path) -> None:
    path = tmp_path / "set"
    shutil.copytree(GOLDEN / "tokens-int32", path, copy_function=shutil.copyfile)
    data = bytearray((path / "chunk-0-1.bin").read_bytes())
    data[-4:] = b"\xff" * 4
    (path / "chunk-0-1.bin").write_bytes(data)
    with pytest.raises(Corrupt, match="-1"):
        ps.convert(path, tmp_path / "out.pbin")
