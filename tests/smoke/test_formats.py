"""Every format of the registry is written, opened, read and checked."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.smoke.made import MADE

import penstock as ps
from penstock.errors import Unsupported
from penstock.formats import BUILT_IN, get_format
from penstock.testing import same


def test_none_is_forgotten() -> None:
    assert set(MADE) == set(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_format(name: str, tmp_path: Path) -> None:
    made = MADE[name](tmp_path)
    source: Any = ps.open(made.path, format=name, **made.options)
    assert len(source) >= len(made.samples)
    for index, sample in enumerate(made.samples):
        assert same({key: source[index][key] for key in sample}, sample)
    loader = ps.Loader(ps.Shuffle(source, seed=1), global_batch=2)
    assert len(list(islice(loader, 3))) == 3
    found = ps.verify(made.path, format=name, depth="full", **made.options)
    assert not [one for one in found if one.severity == "error"]
    if not get_format(name).traits.write:
        with pytest.raises(Unsupported):
            ps.create(tmp_path / "other", format=name)
