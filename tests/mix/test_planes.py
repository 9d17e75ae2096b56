"""Mixes of tokens some of which have planes: others get the value that changes nothing, or the mix is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import ConfigError


def tokens(path: Path, planes: dict[str, str] | None = None) -> Any:
    with ps.create(path, format="pbin", token_bytes=2, eos_id=0, planes=planes or {}) as writer:
        for number in range(20):
            values = {name: np.zeros(10, dtype) for name, dtype in (planes or {}).items()}
            writer.write({"tokens": np.array([number + 1] * 9 + [0], np.uint16), **values})
    return ps.open(path)


def mixes(one: Any, other: Any) -> list[Any]:
    both = {"one": one, "other": other}
    return [
        ps.Blend(both, {"one": 1, "other": 1}, 1),
        ps.Stages([(4, ps.Shuffle(one, 1)), (None, ps.Shuffle(other, 1))]),
        ps.Epochs({"one": (one, 1), "other": (other, 1)}),
        ps.Concat([one, other]),
    ]


@pytest.mark.parametrize("windows", [ps.Chunk(5), ps.Chunk(5, labels="shift"), ps.Whole(12)])
def test_what_has_no_plane_counts_in_full(tmp_path: Path, windows: Any) -> None:
    planes = {"loss_mask": "bool", "weight": "float16"}
    masked, plain = windows(tokens(tmp_path / "a.pbin", planes)), windows(tokens(tmp_path / "b.pbin"))
    count = len(masked) + len(plain)
    for mix in mixes(masked, plain):
        batch = mix.get_batch(list(range(count)))
        assert (batch["weight"].dtype, batch["weight"].shape) == (np.float16, batch["tokens"].shape)
        assert batch["loss_mask"].dtype == bool
        ones = batch["weight"].all(axis=1)
        assert 0 < ones.sum() < count
        assert not batch["weight"][~ones].any()
        assert not batch["loss_mask"][~ones].any()
        assert batch["loss_mask"][ones].any(axis=1).all()
        assert {"loss_mask", "weight"} <= {field.name for field in mix.schema.fields}
        for number in range(count):
            assert mix[number]["weight"].tolist() == batch["weight"][number].tolist()


def test_documents_too(tmp_path: Path) -> None:
    mix = ps.Blend(
        {"a": tokens(tmp_path / "a.pbin", {"weight": "float16"}), "b": tokens(tmp_path / "b.pbin")}, {"a": 1, "b": 1}, 1
    )
    assert mix.get_batch(list(range(8)))["weight"].shape == (8, 10)


def test_a_plane_without_such_a_value_is_refused(tmp_path: Path) -> None:
    windows = ps.Chunk(5)
    one, other = windows(tokens(tmp_path / "a.pbin", {"codes": "uint16"})), windows(tokens(tmp_path / "b.pbin"))
    for mix in mixes(one, other):
        with pytest.raises(ConfigError, match="the plane codes") as caught:
            mix.get_batch(list(range(8)))
        assert "planes=None" in str(caught.value)
