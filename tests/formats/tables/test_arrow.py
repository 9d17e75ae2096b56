"""parquet and hf: read as pyarrow reads them, in blocks."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.errors import (
    ConfigError,
    Corrupt,
    FormatError,
    NotFound,
    PenstockError,
    Truncated,
    UnsafeData,
    Unsupported,
)
from penstock.formats import get_format, sniff
from penstock.store.local import LocalStore
from penstock.testing import CountingStore, SourceLaws
from penstock.types import OpenOptions, Sample

ROWS: list[Sample] = [
    {"id": number, "text": f"row {number} é", "x": number / 4, "tags": ["t"] * (number % 3), "raw": bytes([number])}
    for number in range(23)
]
GOLDEN_ROWS: list[Sample] = [
    {
        "text": f"row {number} é" if number % 5 else None,
        "label": number % 2,
        "score": number / 4,
        "ids": list(range(number % 3)),
        "raw": bytes([number]),
    }
    for number in range(25)
]


def put_parquet(path: Path, rows: list[Sample] = ROWS, group: int = 5) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=group)
    return path


class TestParquet(SourceLaws):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Any:
        return ps.open(put_parquet(tmp_path / "a.parquet"))

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return ROWS

    def test_blocks_are_row_groups(self, source: Any) -> None:
        assert source.block_starts.tolist() == [0, 5, 10, 15, 20, 23]
        assert source.place_of(7).extents[0].offset_bytes > source.place_of(2).extents[0].offset_bytes
        assert [(one.name, one.kind) for one in source.schema.fields] == [
            ("id", "int"), ("text", "text"), ("x", "float"), ("tags", "json"), ("raw", "bytes"),
        ]  # fmt: skip

    def test_prints_a_screen(self, source: Any) -> None:
        assert str(source).startswith(source.recipe()["format"])


class TestParquetFolder(TestParquet):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Any:
        put_parquet(tmp_path / "set" / "b.parquet", ROWS[10:])
        put_parquet(tmp_path / "set" / "a.parquet", ROWS[:10])
        (tmp_path / "set" / "_metadata").write_bytes(b"kept by other tools")
        return ps.open(tmp_path / "set")


class TestHf(SourceLaws):
    def test_prints_a_screen(self, source: Any) -> None:
        assert str(source).startswith("hf")

    @pytest.fixture
    def source(self, golden: Path) -> Any:
        return ps.open(golden / "hf")

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return GOLDEN_ROWS

    def test_blocks_are_record_batches(self, source: Any) -> None:
        assert source.block_starts.tolist() == [0, 13, 25]
        assert source.recipe()["format"] == "hf"
        again = ps.open(source.recipe()["path"], split="test")
        assert again[1]["text"] == "row 101 é"


@pytest.fixture
def saved(golden: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden / "hf", tmp_path / "saved"))


def test_without_maps_and_columns(tmp_path: Path, golden: Path) -> None:
    path = str(put_parquet(tmp_path / "a.parquet"))
    for name, where, rows in (("parquet", path, ROWS), ("hf", str(golden / "hf"), GOLDEN_ROWS)):
        store = CountingStore(LocalStore())
        source: Any = get_format(name).open(store, where, OpenOptions(columns=("raw",)))
        assert list(source) == [{"raw": row["raw"]} for row in rows]
        assert sniff(LocalStore(), where).name == name
        assert ps.verify(where, depth="full") == []
        with pytest.raises(ConfigError, match="no column 'nope'"):
            len(get_format(name).open(store, where, OpenOptions(columns=("nope",))))
        with pytest.raises(Unsupported, match="read-only"):
            ps.create(tmp_path / "out", format=name)


def test_few_blocks_are_held(tmp_path: Path) -> None:
    source: Any = ps.open(put_parquet(tmp_path / "a.parquet", group=1))
    for index in range(len(source)):
        source[index]
    assert len(source._held) <= 8


def test_a_row_group_is_read_alone(tmp_path: Path) -> None:
    rows = [{"raw": np.random.default_rng(number).bytes(100_000)} for number in range(20)]
    store = CountingStore(LocalStore())
    path = str(put_parquet(tmp_path / "a.parquet", rows, group=1))
    source: Any = get_format("parquet").open(store, path, OpenOptions())
    assert source[13] == rows[13]
    assert store.read_bytes < 400_000


@pytest.mark.parametrize("groups", [20, 200])
def test_a_footer_is_read_once_for_all_groups(groups: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ps.open(put_parquet(tmp_path / "a.parquet", [{"n": number} for number in range(groups)], 1))
    assert len(source) == groups
    footers: list[object] = []

    class Counted(pq.ParquetFile):
        def __init__(self, source: Any, *, metadata: Any = None, **options: Any) -> None:
            footers.append(metadata)
            super().__init__(source, metadata=metadata, **options)

    monkeypatch.setattr(pq, "ParquetFile", Counted)
    for one in (source, pickle.loads(pickle.dumps(source))):
        footers.clear()
        assert [one[number]["n"] for number in range(groups)] == [*range(groups)]
        assert len(footers) in (groups, groups + 1), "a copy opens the file once more"
        assert footers.count(None) <= 2


def test_splits(saved: Path) -> None:
    assert len(ps.open(saved, split="test")) == 3
    assert len(ps.open(saved / "train")) == 25
    with pytest.raises(NotFound, match="unknown split"):
        ps.open(saved, split="val")
    with pytest.raises(ConfigError, match="has no splits"):
        ps.open(saved / "train", split="test")
    (saved / "train").rename(saved / "a")
    (saved / "dataset_dict.json").write_text('{"splits": ["a", "b"]}')
    with pytest.raises(ConfigError, match="several"):
        ps.open(saved)


@pytest.mark.parametrize("name", ["../x.arrow", "/etc/passwd", "a/../../x"])
def test_names_that_leave_the_folder(saved: Path, name: str) -> None:
    (saved / "train" / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(UnsafeData):
        ps.open(saved)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"_data_files": 3}', '{"_data_files": [{}]}'])
def test_bad_state(saved: Path, text: str) -> None:
    (saved / "train" / "state.json").write_text(text)
    with pytest.raises(Corrupt):
        ps.open(saved)
    assert [one.code for one in ps.verify(saved)] == ["hf.damaged"]


def test_rows_chosen_by_indices_are_refused(saved: Path) -> None:
    state = json.loads((saved / "train" / "state.json").read_text())
    (saved / "train" / "state.json").write_text(json.dumps(state | {"_indices_data_files": [{"filename": "i.arrow"}]}))
    with pytest.raises(Unsupported, match="indices"):
        ps.open(saved)


def test_columns_must_agree(tmp_path: Path) -> None:
    put_parquet(tmp_path / "set" / "a.parquet", [{"a": 1}])
    put_parquet(tmp_path / "set" / "b.parquet", [{"a": "x"}])
    with pytest.raises(Unsupported, match="first file"):
        len(ps.open(tmp_path / "set"))


def test_cut_files(tmp_path: Path, saved: Path) -> None:
    parquet = put_parquet(tmp_path / "a.parquet")
    arrow = saved / "train" / "data-00001-of-00002.arrow"
    for file, path, rows in ((parquet, parquet, ROWS), (arrow, saved, GOLDEN_ROWS)):
        whole = file.read_bytes()
        for size in range(0, len(whole), max(1, len(whole) // 40)):
            file.write_bytes(whole[:size])
            with pytest.raises(PenstockError):
                list(ps.open(path, format="parquet" if file is parquet else "hf"))
        file.write_bytes(whole)
        assert list(ps.open(path)) == rows


def test_changed_structure_never_crashes(saved: Path) -> None:
    """Offsets that lead anywhere, in a child's eyes: an error or other values, never a fault of the process."""
    file = saved / "train" / "data-00000-of-00002.arrow"
    whole = file.read_bytes()
    rng = np.random.default_rng(3)
    for place in rng.integers(0, len(whole), 150).tolist():
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(0, 8))
        file.write_bytes(changed)
        try:
            list(ps.open(saved, read="pread"))
        except PenstockError:
            continue


def test_bytes_behind_the_end(saved: Path) -> None:
    with (saved / "train" / "data-00000-of-00002.arrow").open("ab") as file:
        file.write(b"more")
    with pytest.raises((Corrupt, Truncated)):
        len(ps.open(saved))


def test_missing(tmp_path: Path) -> None:
    for name in ("parquet", "hf"):
        with pytest.raises(NotFound):
            ps.open(tmp_path / "none", format=name)
    os.mkdir(tmp_path / "empty")
    with pytest.raises(NotFound):
        ps.open(tmp_path / "empty", format="parquet")


def test_files_folders_and_patterns_are_one_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("b.parquet", "a.parquet", "deep/c.pq")):
        Path(name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"n": [10 * number, 10 * number + 1]}), name)
    Path("notes.jsonl").write_text('{"n": 1}\n')
    wanted = {"*.parquet": [10, 11, 0, 1], "**/*.p*": [10, 11, 0, 1, 20, 21], "deep/*": [20, 21]}
    for pattern, rows in wanted.items():
        source = ps.open(pattern)
        assert [row["n"] for row in source] == rows
        assert ps.open_recipe(source.recipe()).fingerprint == source.fingerprint
        assert [row["n"] for row in pickle.loads(pickle.dumps(source))] == rows
    listed = ps.open(["deep", "b.parquet"])
    assert [row["n"] for row in listed] == [0, 1, 20, 21]
    assert [row["n"] for row in ps.open_recipe(listed.recipe())] == [0, 1, 20, 21]
    assert ps.open(["a.parquet", "b.parquet"]).fingerprint == ps.open("*.parquet").fingerprint
    for wrong, kind in (
        (["a.parquet", "./a.parquet"], ConfigError),
        (["a.parquet", "notes.jsonl"], ConfigError),
        (["notes.jsonl", "a.parquet"], ConfigError),
        (["a.parquet", "no.parquet"], NotFound),
        ("none/*.parquet", NotFound),
    ):
        with pytest.raises(kind):
            len(ps.open(wrong))


def test_a_link_out_of_a_searched_folder_is_refused(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    pq.write_table(pa.table({"n": [1]}), tmp_path / "out.parquet")
    (inside / "x.parquet").symlink_to("../out.parquet")
    with pytest.raises(UnsafeData):
        len(ps.open([inside]))
    assert len(ps.open([inside], follow_links=True)) == len(ps.open([inside / "x.parquet"])) == 1


def test_a_saved_dataset_whose_state_lists_no_file(saved: Path) -> None:
    folder = saved / "test"
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "_data_files": []}))
    assert len(ps.open(folder)) == 0
    (finding,) = ps.verify(folder)
    assert (finding.code, finding.severity, Path(finding.path).suffix) == ("hf.unlisted", "warning", ".arrow")


def test_a_saved_dataset_beside_the_features_of_another(saved: Path) -> None:
    folder = saved / "test"
    info = json.loads((folder / "dataset_info.json").read_text())
    info["features"]["title"] = info["features"].pop("text")
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (finding,) = ps.verify(folder)
    assert (finding.code, finding.severity) == ("hf.features", "error")
    assert finding.path == str(folder / "dataset_info.json")
    (folder / "dataset_info.json").write_text("{")
    assert [one.code for one in ps.verify(folder, format="hf")] == ["hf.damaged"]


@pytest.mark.parametrize("make", ["new_file", "new_stream"])
def test_one_arrow_file_is_a_dataset(tmp_path: Path, make: str) -> None:
    path, rows = tmp_path / "rows.arrow", pa.table({"ids": [[1, 2], [3]], "text": ["a", "b"]})
    with getattr(pa.ipc, make)(path, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=1)
    source: Any = ps.open(path)
    assert [source[index] for index in range(2)] == rows.to_pylist()
    assert source.recipe()["format"] == "hf"
    assert source.block_starts.tolist() == [0, 1, 2]
    assert ps.open(tmp_path / "rows.arrow", read="pread")[1] == rows.to_pylist()[1]
    assert ps.verify(path, depth="full") == []
    with pytest.raises(ConfigError, match="has no splits"):
        ps.open(path, split="train")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert [one.code for one in ps.verify(path)] == ["hf.damaged"]
    with pytest.raises(FormatError):
        len(ps.open(path))
