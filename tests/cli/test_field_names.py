"""Samples with a sample type: fields and the stored parts that they come from are both named."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest
from tests.cli.called import called

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


def test_a_wrong_name_lists_the_fields(folder: Path) -> None:
    sample = ps.open(folder)[0]
    for one in (sample, pickle.loads(pickle.dumps(sample))):
        with pytest.raises(KeyError, match=r"no field 'jpg' in this sample.*expected image, caption"):
            one["jpg"]
        assert one.get("jpg") is None
        assert "jpg" not in one
