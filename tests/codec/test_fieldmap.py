"""The access grammar of field maps, against the original's answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from penstock.codec.fieldmap import apply, find, parse_access, parse_field_map, parts_of
from penstock.errors import ConfigError, Corrupt
from penstock.testing.strategies import for_all

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "golden" / "energon" / "field_map.json").read_text(encoding="utf-8")
)
SAMPLE: dict[str, Any] = {
    "json": {"a": {"b": [10, {"c": None}]}, "x": "s", "l": [1, 2], "0": "zero", "k k": 5},
    "txt": "T",
    "a.b.json": {"q": 1},
    "jpg": b"J",
}


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: repr(case["field"]))
def test_as_the_original(case: dict[str, Any]) -> None:
    access = parse_access(case["field"])
    assert [list(option) for option in access] == case["split"]
    if "error" in case:
        with pytest.raises(Corrupt):
            find(access, SAMPLE)
    else:
        value = find(access, SAMPLE)
        assert value == (b"J" if "jpg" in case["field"] else case["value"])


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("json[a,b]", [["json[a,b]"], ["json[a,b]"]]),
        ("a,b[c],", [["a"], ["b", "c"], ["a,b[c],"]]),
        ("[a]", [["[a]"]]),
        ("a[b]c,d", [["a[b]c,d"], ["d"]]),
        ("a,,b", [["a"], ["a,,b"], ["b"]]),
    ],
)
def test_an_option_that_does_not_fit_is_the_whole_text(text: str, options: list[list[str]]) -> None:
    assert [list(option) for option in parse_access(text)] == options


names = st.text(st.characters(exclude_characters="[],"), min_size=1, max_size=5)


def test_what_is_built_is_found() -> None:
    @for_all(names, st.lists(st.one_of(names, st.integers(0, 3)), max_size=4), st.integers())
    def law(name: str, keys: list[str | int], value: int) -> None:
        held: Any = value
        for key in reversed(keys):
            held = [None] * key + [held] if isinstance(key, int) else {key: held}
        text = name + "".join(f"[{key}]" for key in keys)
        assert find(parse_access(text), {name: held}) == value
        assert parts_of({"f": parse_access(f"{text},{name}x")}) == {name, name + "x"}


def test_a_missing_field_is_named() -> None:
    fields = parse_field_map({"image": "png,jpg", "caption": "json[caption]"})
    assert apply(fields, {"jpg": 1, "json": {"caption": "c"}}) == {"image": 1, "caption": "c"}
    with pytest.raises(Corrupt, match=r"'caption'.*json, png.*json\[caption\]"):
        apply(fields, {"json": {"text": "c"}, "png": 2, "__key__": "k"})


@pytest.mark.parametrize("fields", [None, ["a"], "image", {"image": ["jpg"]}, {"image": None}])
def test_what_is_no_field_map_is_refused(fields: object) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.yaml"):
        parse_field_map(fields, "dataset.yaml")
