"""Samples with a sample type: fields and the stored parts that they come from are both named."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
from tests.cli.called import called
from tests.internals import open_target, overview, sample_at

import penstock as ps

GOLDEN = Path(__file__).parent.parent / "golden" / "energon" / "captioning"
FIELDS = '{"image": "jpg", "caption": "json[caption]"}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("fields") / "set"
    copy = shutil.copytree(GOLDEN, target, ignore=shutil.ignore_patterns(".nv-meta", "*.idx", ".penstock"))
    done = called("prepare", copy, "--split-ratio", "1,0,0", "--sample-type", "CaptioningSample", "--field-map", FIELDS)
    assert done.returncode == 0, done.stderr
    return copy


@pytest.mark.parametrize("verb", ["head", "info"])
def test_both_names_are_shown(folder: Path, verb: str) -> None:
    done = called(verb, folder)
    assert done.returncode == 0, done.stderr
    assert "image: jpg" in done.stdout + done.stderr
    assert "caption: json[caption]" in done.stdout + done.stderr


def test_programs_and_pages_get_both_names(folder: Path, tmp_path: Path) -> None:
    expected = json.loads(FIELDS)
    assert json.loads(called("head", folder, "-n", "1", "--json").stdout)["fields"] == expected
    opened = open_target(str(folder))
    assert overview(opened).details["fields"] == expected
    shown = {one.name: one.fields for one in sample_at(opened, 0).panels}
    assert shown["jpg"] == ("image",)
    assert shown["json"] == ("caption",)
    assert called("report", folder, "-o", tmp_path / "page.html").returncode == 0
    assert "field caption" in (tmp_path / "page.html").read_text()


def test_a_wrong_name_lists_the_fields(folder: Path) -> None:
    sample = ps.open(folder)[0]
    for one in (sample, pickle.loads(pickle.dumps(sample))):
        with pytest.raises(KeyError, match=r"no field 'jpg' in this sample.*expected image, caption"):
            one["jpg"]
        assert one.get("jpg") is None
        assert "jpg" not in one
