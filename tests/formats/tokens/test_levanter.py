"""Caches as levanter's own store wrote them: documents of tokens, trees of arrays, in one part and in shards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import penstock as ps
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, Truncated, UnsafeData, Unsupported
from penstock.testing import SourceLaws, TokenSourceLaws
from penstock.types import Sample

GOLDEN = Path(__file__).parents[2] / "golden" / "levanter"
DOCS = [[1, 2, 3], [300], [7] * 20, [], [5, 6]]
NAMES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())


class TestRows(SourceLaws):
    @pytest.fixture
    def source(self) -> Any:
        return ps.open(GOLDEN / "tokens")

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [{"assistant_masks": np.array(doc, np.int32) % 2, "input_ids": np.array(doc, np.int32)} for doc in DOCS]


class TestTrees(SourceLaws):
    @pytest.fixture
    def source(self) -> Any:
        return ps.open(GOLDEN / "trees")

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [
            {
                "many": np.arange(4 * n + 4).reshape(2, n + 1, 2),
                "ok": np.array([n > 1]),
                "x/y": np.full((n + 1, 2), n / 2, np.float32),
            }
            for n in range(3)
        ]


class TestTokens(TokenSourceLaws):
    name: ClassVar = "tokens"
    dtype: ClassVar[Any] = np.uint32
    mask_column: ClassVar[str | None] = "assistant_masks"

    @pytest.fixture
    def source(self) -> Any:
        return ps.open(GOLDEN / self.name, tokens_column="input_ids", mask_column=self.mask_column)

    @pytest.fixture
    def expected(self) -> list[Sample]:
        masks = [{} if self.mask_column is None else {"loss_mask": np.array(doc, np.int32) % 2 == 1} for doc in DOCS]
        return [{"tokens": np.array(doc, self.dtype), **mask} for doc, mask in zip(DOCS, masks, strict=True)]


class TestPutTogether(TestTokens):
    name: ClassVar = "consolidated"
    mask_column: ClassVar[str | None] = None
    dtype: ClassVar[Any] = np.uint16


class TestShards(TestTokens):
    name: ClassVar = "sharded"
    mask_column: ClassVar[str | None] = None
    dtype: ClassVar[Any] = np.uint16


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wrong_with_what_levanter_writes(name: str) -> None:
    for depth in ("quick", "sample", "full"):
        assert ps.verify(GOLDEN / name, depth=depth) == []


def test_rows_that_are_arrays_and_no_rows_are_read() -> None:
    assert [one["value"].tolist() for one in ps.open(GOLDEN / "bare")] == DOCS
    tokens: Any = ps.open(GOLDEN / "bare", tokens_column="value")
    assert tokens.num_tokens == 26
    empty: Any = ps.open(GOLDEN / "empty", tokens_column="input_ids")
    assert (len(empty), empty.num_tokens, empty.fingerprint != tokens.fingerprint) == (0, 0, True)


@pytest.mark.parametrize("name", ["tokens", "consolidated", "sharded"])
def test_documents_are_converted(tmp_path: Path, name: str) -> None:
    mask_column = "assistant_masks" if name == "tokens" else None
    report = ps.convert(GOLDEN / name, tmp_path / "a.pbin", mask_column=mask_column)
    assert (report.samples, report.tokens) == (5, 26)
    assert [one["tokens"].tolist() for one in ps.open(tmp_path / "a.pbin")] == DOCS


def test_trees_are_converted(tmp_path: Path) -> None:
    ps.convert(GOLDEN / "trees", tmp_path / "a.jsonl")
    assert json.loads((tmp_path / "a.jsonl").read_text().splitlines()[1])["x/y"] == [[0.5, 0.5]] * 2


def test_another_place_has_the_same_fingerprint(tmp_path: Path) -> None:
    found = ps.open(copied("sharded", tmp_path)).fingerprint
    assert found == ps.open(GOLDEN / "sharded").fingerprint
    path = tmp_path / "set" / "00001_shard" / "input_ids" / "data" / "c" / "0"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    assert ps.open(tmp_path / "set").fingerprint != found


def copied(name: str, tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / name, tmp_path / "set", copy_function=shutil.copyfile)
    return tmp_path / "set"


def edited(file: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        found = json.loads((path / file).read_text())
        change(found)
        (path / file).write_text(json.dumps(found))

    return edit


def ledger(**changes: Any) -> Callable[[Path], None]:
    return edited("shard_ledger.json", lambda found: found.update(changes))


def array(file: str, **changes: Any) -> Callable[[Path], None]:
    return edited(f"input_ids/{file}/zarr.json", lambda found: found.update(changes))


def written(file: str, data: bytes) -> Callable[[Path], None]:
    return lambda path: (path / file).write_bytes(data)  # type: ignore[return-value]


def test_a_ledger_of_an_older_levanter_is_read(tmp_path: Path) -> None:
    """Before 2025 it had no counts of values and no layout: fields are those that have a folder."""
    for number, name in enumerate(("tokens", "consolidated")):
        path = copied(name, tmp_path / str(number))
        found = json.loads((path / "shard_ledger.json").read_text())
        kept = {key: found[key] for key in ("total_num_rows", "shard_rows", "is_finished", "finished_shards")}
        (path / "shard_ledger.json").write_text(json.dumps({**kept, "field_counts": {}, "metadata": {}}))
        assert [one["input_ids"].tolist() for one in ps.open(path)] == DOCS
        assert set(ps.open(path)[0]) == set(ps.open(GOLDEN / name)[0])


BROKEN: dict[str, tuple[str, Callable[[Path], None], type[PenstockError], str]] = {
    "not finished": ("tokens", ledger(is_finished=False), Corrupt, "unfinished"),
    "a new layout": ("tokens", ledger(layout="woven"), Unsupported, "woven"),
    "a new key": ("tokens", ledger(version=2), Unsupported, "version"),
    "no ledger in it": ("tokens", written("shard_ledger.json", b'{"total_num_rows": "x"}'), Corrupt, "not a ledger"),
    "no JSON": ("tokens", written("shard_ledger.json", b'{"total_num_rows": 1'), Corrupt, "not JSON"),
    "no object": ("tokens", written("shard_ledger.json", b'["total_num_rows"]'), Corrupt, "not a ledger"),
    "another number of rows": ("tokens", ledger(total_num_rows=6), Corrupt, "number of rows"),
    "other values": ("tokens", ledger(field_counts={"input_ids": 27}), Corrupt, "number of values"),
    "shards that don't add up": ("sharded", ledger(total_num_rows=9), Corrupt, "rows of the shards"),
    "a shard twice": ("sharded", ledger(finished_shards=["00001_shard"] * 2, total_num_rows=6), Corrupt, "shards"),
    "a shard outside": (
        "sharded",
        ledger(finished_shards=["../x"], shard_rows={"../x": 5}),
        UnsafeData,
        "points outside the",
    ),
    "a dtype that numpy lacks": ("tokens", array("data", data_type="bfloat16"), Unsupported, "bfloat16"),
    "offsets of another dtype": ("tokens", array("offsets", data_type="int32"), Unsupported, "int32"),
    "another codec": ("tokens", array("data", codecs=[{"name": "zfp"}]), Unsupported, "zfp"),
    "a fill value": ("tokens", array("data", fill_value="NaN"), Corrupt, "fill value"),
    "no metadata": ("tokens", written("input_ids/data/zarr.json", b"[]"), Corrupt, "metadata"),
    "no offsets": (
        "tokens",
        lambda path: (path / "input_ids/offsets/c/0").unlink(),
        Truncated,
        "a chunk file is missing",
    ),
    "no array": ("tokens", lambda path: (path / "input_ids/data/zarr.json").unlink(), NotFound, "no such file"),
    "a cut shard": ("tokens", written("input_ids/data/c/0", b"x" * 100), PenstockError, "shorter than its index"),
    "shapes of other rows": (
        "trees",
        lambda path: (path / "x/y/shapes/c/0/0").write_bytes((path / "many/offsets/c/0").read_bytes()),  # type: ignore[return-value]
        Corrupt,
        "doesn't match its shape",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_damage_and_unknown_versions_are_named(tmp_path: Path, kind: str) -> None:
    name, edit, error, match = BROKEN[kind]
    path = copied(name, tmp_path)
    edit(path)
    with pytest.raises(error, match=match):
        _ = [*ps.open(path, format="levanter")]
    findings = ps.verify(path, format="levanter", depth="full")
    assert {one.severity for one in findings} == {"error"}


def test_missing_ids_are_an_error_and_other_missing_values_zeros_with_a_warning(tmp_path: Path) -> None:
    """Levanter writes no file of zeros alone, such as of a mask."""
    path = copied("tokens", tmp_path)
    (path / "assistant_masks/data/c/0").unlink()
    assert not ps.open(path)[2]["assistant_masks"].any()
    (finding,) = ps.verify(path)
    assert (finding.code, finding.severity) == ("levanter.absent", "warning")
    assert finding.path.endswith("assistant_masks/data/c/0")
    (path / "input_ids/data/c/0").unlink()
    with pytest.raises(Truncated, match="input_ids/data/c/0: a chunk file is missing"):
        _ = ps.open(path)[2]
    assert {(one.code, one.severity) for one in ps.verify(path)} >= {("levanter.damaged", "error")}


def test_fields_that_can_not_be_read_are_left_out(tmp_path: Path) -> None:
    path = copied("tokens", tmp_path)
    array("data", data_type="bfloat16")(path)
    source: Any = ps.open(path, columns=["assistant_masks"])
    assert source[0]["assistant_masks"].tolist() == [1, 0, 1]
    assert len(source.fingerprint) == 32
    with pytest.raises(ConfigError, match="no column 'x'"):
        ps.open(path, columns=["x"])
    with pytest.raises(Unsupported, match="no token ids"):
        _ = ps.open(GOLDEN / "trees", tokens_column="x/y").doc_starts  # type: ignore[attr-defined]


def test_what_is_no_cache_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no shard_ledger\.json"):
        ps.open(tmp_path, format="levanter")
    (tmp_path / "cache_ledger.json").write_text("{}")
    with pytest.raises(NotFound, match="Parquet"):
        ps.open(tmp_path, format="levanter")
    with pytest.raises(Unsupported, match="read"):
        ps.create(tmp_path / "x", format="levanter")
