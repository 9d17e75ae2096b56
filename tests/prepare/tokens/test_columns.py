from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import ConfigError
from penstock.prepare import PackReport


def documents(path: Path, **options: Any) -> list[list[int]]:
    source = ps.open(path, **options)
    return [source[index]["tokens"].tolist() for index in range(len(source))]


def test_shards_hold_the_documents_of_a_packed_file(
    made: Callable[..., PackReport], corpus: Path, tmp_path: Path
) -> None:
    made(corpus)
    report = made(corpus, tmp_path / "out_mds", to="mds", workers=2, task_bytes=3000)
    packed, shards = documents(tmp_path / "out.pbin"), documents(tmp_path / "out_mds")
    assert shards == packed
    assert report.documents == len(shards) == 150
    assert ps.open(tmp_path / "out_mds")[0]["tokens"].dtype == np.uint16
    assert ps.verify(tmp_path / "out_mds", depth="full") == []


def test_shards_turn_back_into_the_same_packed_file(
    made: Callable[..., PackReport], corpus: Path, tmp_path: Path
) -> None:
    made(corpus)
    made(corpus, tmp_path / "out_mds", to="mds")
    ps.convert(tmp_path / "out_mds", tmp_path / "back.pbin", to="pbin")
    assert (tmp_path / "back.pbin").read_bytes() == (tmp_path / "out.pbin").read_bytes()


def test_an_output_that_is_there_is_refused(made: Callable[..., PackReport], corpus: Path, tmp_path: Path) -> None:
    made(corpus, tmp_path / "out_mds", to="mds")
    with pytest.raises(ConfigError, match="out_mds"):
        made(corpus, tmp_path / "out_mds", to="mds")
    made(corpus, tmp_path / "out_mds", to="mds", overwrite=True)
