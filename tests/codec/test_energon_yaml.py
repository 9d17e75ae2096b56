"""Energon's YAML dialect, held against what the real one reads and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codec.energon_yaml import dump, load
from penstock.errors import FormatError

GOLDEN = Path(__file__).parent.parent / "golden" / "energon"
CASES = json.loads((GOLDEN / "tables.json").read_text())["energon_yaml_subset"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["yaml"])
def test_as_the_original(case: dict[str, Any]) -> None:
    value = load(case["yaml"], "a.yaml")
    assert json.dumps(value) == json.dumps(case.get("value", {"a": None}))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# only a comment\n", None),
        ("exclude:\nsplit_parts:\n  train:\n  - a\n", {"exclude": None, "split_parts": {"train": ["a"]}}),
        ("a: {b}", {"a": {"b": None}}),
        ("- {a,b}", [{"a": None, "b": None}]),
        ("a: !!python/object/apply:os.system [ls]", {"a": ["ls"]}),
        ("a: !foo x", {"a": "x"}),
        ("a: &b {x: 1}\nc:\n  <<: *b\n*b : 1\n", {"a": {"x": 1}, "c": {"<<": "*b"}, "*b": 1}),
        ("a: 1E3\nb: tRuE\nc: +5\nd: 12e\ne: 1_0.5", {"a": 1000.0, "b": True, "c": 5, "d": "12e", "e": 10.5}),
        (f"a: {'9' * 5000}", {"a": "9" * 5000}),
        ("5", 5),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert load(text, "a.yaml") == value
    assert load(text.encode(), "a.yaml") == value


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("a: 1\nb: [", "line 3"),
        ("a: 1\n\tb: 2", "line 2"),
        ("a: 1\n---\nb: 2", "second document"),
        ("? [a]\n: b", "as a key"),
        ("x: 1\na: " + "[" * 150 + "]" * 150, "in line 2"),
        (b"\xff\xfe\x00\x00a", "YAML"),
        (b"a: \x00", "YAML"),
        (b"\xc3\x28", "YAML"),
    ],
)
def test_refused(data: bytes | str, said: str) -> None:
    with pytest.raises(FormatError, match=said) as caught:
        load(data, "some/a.yaml")
    assert caught.value.path == "some/a.yaml"


def test_what_energon_wrote_is_what_we_write() -> None:
    files = sorted(GOLDEN.glob("*/nv-meta/split.yaml")) + sorted(GOLDEN.glob("versions/*/nv-meta/*.yaml"))
    files = [path for path in files if "seed002" not in str(path)]
    assert len(files) >= 12
    for path in files:
        text = path.read_text()
        assert text in (dump(load(text, str(path))), dump(load(text, str(path)), sort_keys=True))


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.text(max_size=8), st.lists(st.text(max_size=8)), max_size=4))
def test_texts_survive(value: dict[str, list[str]]) -> None:
    # The original writes by PyYAML and reads by its own rules: texts like `1e3` and `~x` come back as it reads them.
    read = load(dump({"a": value}), "a.yaml")["a"]
    for key, texts in value.items():
        for before, after in zip(texts, read[key], strict=True):
            assert after == before or not isinstance(after, str)
