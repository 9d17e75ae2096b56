"""`lint`: what it reads, of which data, and what it tells."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.internals import DatasetOptions, lint, prepare_webdataset

import penstock as ps
from penstock.errors import NotFound, UnsafeData

GOLDEN = Path(__file__).parent.parent / "golden" / "energon"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN / "captioning", tmp_path / "set", ignore=shutil.ignore_patterns(".nv-meta"))


def test_crude_and_typed(folder: Path) -> None:
    prepare_webdataset(folder, split_ratio=(2, 1, 1), dataset=DatasetOptions(sample_type="CrudeWebdataset"))
    told: list[tuple[int, int]] = []
    report = lint(folder, progress=lambda done, total: told.append((done, total)))
    assert (report.samples, report.findings) == ({"train": 20, "val": 10, "test": 10}, ())
    assert told[-1] == (40, 40)
    other = folder / ".nv-meta" / "other.yaml"
    other.write_text(
        "sample_type: {__module__: megatron.energon, __class__: TextSample}\nfield_map: {text: 'json[no such key]'}\n"
    )
    report = lint(folder, splits=["val"], dataset_config="other.yaml")
    (first,) = report.findings
    assert str(first.found).endswith("; the same in 9 more samples")
    assert (first.code, first.severity, first.offset_bytes) == ("webdataset.sample", "error", 0)
    assert first.path.endswith("shard_002.tar")
    with pytest.raises(NotFound):
        lint(folder, dataset_config="nothing.yaml")
    with pytest.raises(NotFound):
        lint(folder, split_config="nothing.yaml")


def test_code_of_the_dataset_runs_when_trusted(folder: Path) -> None:
    text = "def sample_loader(raw):\n    return {'text': 1 // (raw['__key__'] != 's0_003')}\n"
    text += "def part_filter(part):\n    return part == 'txt'\n"
    dataset = DatasetOptions(sample_type="TextSample", sample_loader=text)
    prepare_webdataset(folder, split_ratio=(1, 0, 0), dataset=dataset)
    with pytest.raises(UnsafeData):
        lint(folder)
    (finding,) = lint(folder, trust=True).findings
    assert "ZeroDivisionError" in str(finding.found)
    assert "'s0_003'" in str(finding.found)


def test_an_index_that_disagrees(folder: Path) -> None:
    prepare_webdataset(folder, split_ratio=(1, 0, 0))
    (index,) = folder.rglob("shard_001.tar.idx")
    index.write_bytes(index.read_bytes()[:-8])
    assert any(one.severity == "error" for one in lint(folder).findings)


def test_other_data(tmp_path: Path) -> None:
    with ps.create(tmp_path / "set", format="mds", columns={"n": "int"}) as writer:
        writer.write({"n": 1})
    assert lint(tmp_path / "set").samples == {"": 1}
