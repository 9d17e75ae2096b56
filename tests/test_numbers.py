"""Numbers in somebody's text: of any length, in any script, wherever they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._limits import count_in
from penstock.codec.compress import parse_compression
from penstock.codec.fields._arrays import parse_array
from penstock.compat.modalities.commands.config import load_config
from penstock.compat.streaming.checks import parse_cache_limit
from penstock.errors import ConfigError

LONG = "000000001" + "9" * 5000
NO_NUMBERS = ["", "-1", "+1", " 1", "1_0", "1.0", "²", "٣", "１", LONG]


@given(st.integers(0, 1 << 70), st.integers(1, 1 << 63), st.integers(0, 30))
def test_a_number_below_the_bound_is_read(number: int, below: int, zeros: int) -> None:
    assert count_in("0" * zeros + str(number), below) == (number if number < below else None)


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_is_no_number_is_none(text: str) -> None:
    assert count_in(text) is None


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (parse_compression, f"zstd:{LONG}"),
        (parse_compression, "zstd:²"),
        (parse_array, f"uint8:00000000000{LONG}"),
        (parse_array, "uint8:0,1"),
        (parse_cache_limit, "²"),
    ],
)
def test_who_reads_one_refuses_what_is_none(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ConfigError):
        read(text)


@pytest.mark.parametrize("key", ["²", "--1", "-3", "2", "9" * 5000])
def test_an_index_of_an_interpolation_that_is_none(key: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"a: [1, 2]\nb: ${{a.{key}}}\n", "utf-8")
    with pytest.raises(ConfigError, match="unresolved interpolation"):
        load_config(path)


@pytest.mark.parametrize(("key", "value"), [("0", 1), ("1", 2), ("-1", 2), ("-2", 1), ("-0", 1)])
def test_an_index_of_an_interpolation(key: str, value: int, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"a: [1, 2]\nb: ${{a.{key}}}\n", "utf-8")
    assert load_config(path)["b"] == value
