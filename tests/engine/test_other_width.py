"""A folder of token files is not replaced by the same documents with ids of a different id width."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.errors import ConfigError


@pytest.mark.parametrize("to", ["pbin", "megatron"])
def test_another_width_is_an_error_that_leaves_the_folder_as_it_is(tmp_path: Path, to: str) -> None:
    source, target = tmp_path / "in.pbin", tmp_path / "out"
    with ps.create(source, format="pbin", token_bytes=2) as writer:
        for first in range(4):
            writer.write({"tokens": np.arange(first, first + 30, dtype=np.uint16)})
    ps.convert(source, target, to=to, file_tokens=70, token_bytes=2)
    before = {path.name: path.read_bytes() for path in target.iterdir() if path.is_file()}
    with pytest.raises(ConfigError, match="a different id width") as error:
        ps.convert(source, target, to=to, file_tokens=70, token_bytes=4, overwrite=True)
    assert "delete this folder" in str(error.value.hint)
    assert {path.name: path.read_bytes() for path in target.iterdir() if path.is_file()} == before
    assert ps.open(target).dtype.itemsize == 2

    ps.convert(source, target, to=to, file_tokens=70, token_bytes=2, overwrite=True, restart=True)
    assert {path.name for path in target.iterdir()} == before.keys()
    shutil.rmtree(target)
    ps.convert(source, target, to=to, file_tokens=70, token_bytes=4)
    assert ps.open(target).dtype.itemsize == 4
    tokens = b"".join(
        path.read_bytes() for path in sorted(target.glob("part-*.bin" if to == "megatron" else "part-*.pbin"))
    )
    expected = np.concatenate([np.arange(first, first + 30) for first in range(2)]).astype("<i4").tobytes()
    assert expected in tokens
