"""Fields, joined fields and jq patterns."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.prepare.tokens.documents import Texts
from penstock.prepare.tokens.reading import JqProgram, LineReader, Selection, compile_path, make_reader, select


def read(selection: Selection, *lines: object) -> Texts:
    block = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    return make_reader(selection).read(block)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (".text", ("text",)),
        (" .a.b ", ("a", "b")),
        ('.["x y"]', ("x y",)),
        (".a[0]", ("a", 0)),
        ('.a["b"][-1].c', ("a", "b", -1, "c")),
        (".a.[2]", ("a", 2)),
        (".", None),
        ("", None),
        ('["x"]', None),
        ("text", None),
        (".a[]", None),
        (".a, .b", None),
        (".a | length", None),
        ('.["\\(1)"]', None),
        (".a?", None),
        (".a-b", None),
    ],
)
def test_plain_paths_are_told_from_programs(pattern: str, path: object) -> None:
    assert compile_path(pattern) == path


def test_several_fields_are_joined() -> None:
    found = read(
        select(["title", "meta.body"], join=" / "), {"title": "T", "meta": {"body": "B\u00e9"}}, {"title": "x"}
    )
    assert found.texts == ["T / B\u00e9".encode()]
    assert found.faults == {1: "no field 'meta.body' (fields: title)"}


def test_a_join_of_line_breaks_is_the_default() -> None:
    assert read(select(["a", "b"]), {"a": "1", "b": "2"}).texts == [b"1\n\n2"]


def test_bad_documents_of_a_plain_path_are_named() -> None:
    found = read(select(jq=".a[1]"), {"a": ["x", "y"]}, {"a": ["x"]}, {"a": "z"}, {"a": ["x", 3]}, b"{", {"a": None})
    assert found.texts == [b"y"]
    assert sorted(found.faults) == [1, 2, 3, 4, 5]
    assert found.faults[1] == "no field 'a.[1]'"
    assert found.faults[2] == "field 'a' is text, not a list"
    assert found.faults[3] == "field 'a.[1]' is a number, not text"


def test_only_the_first_output_of_a_program_counts() -> None:
    found = read(select(jq=".a, .b"), {"a": "x", "b": "y"}, {"a": None, "b": "y"})
    assert found.texts == [b"x"]
    assert found.faults == {1: "jq '.a, .b' returns null, not text"}


def test_programs_that_give_nothing_or_fail_are_bad_documents() -> None:
    found = read(
        select(jq=".a[]"), {"a": ["p", "q"]}, {"a": []}, {"a": 3}, b"nonsense", {"a": [1]}, b'\xef\xbb\xbf{"a":["r"]}'
    )
    assert found.texts == [b"p", b"r"]
    assert found.places == [0, 5]
    assert found.faults[1] == "jq '.a[]' returns nothing"
    assert "fails" in found.faults[2]
    assert found.faults[3].startswith("not JSON")
    assert found.faults[4].endswith("a number, not text")


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([".t", ".a.b", ".a[0]", '.["t"]', ".a[-1]", '.a["b"]']),
    st.lists(
        st.dictionaries(
            st.sampled_from(["t", "a"]),
            st.recursive(
                st.none() | st.integers(0, 9) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("b"), inner),
                max_leaves=4,
            ),
        ),
        max_size=5,
    ),
)
def test_plain_paths_give_what_jq_gives(pattern: str, lines: list[object]) -> None:
    block = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    found, expected = make_reader(select(jq=pattern)).read(block), LineReader(JqProgram(pattern).text_of).read(block)
    assert found.texts == expected.texts
    assert found.faults.keys() == expected.faults.keys()


@pytest.mark.parametrize("pattern", [".a |", "nonsense(", "}"])
def test_a_program_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="not a valid jq program"):
        select(jq=pattern)


def test_a_field_and_a_program_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="can't be combined"):
        select("text", jq=".text")


def test_lines_of_plain_text() -> None:
    found = read(Selection(unit="line"), b"one\r", b"", b"  ", b"zw\xc3\xb6lf", b"\xff")
    assert found.texts == [b"one", "zw\u00f6lf".encode()]
    assert found.places == [0, 3]
    assert found.faults == {4: "not UTF-8, byte 1"}


def test_a_file_of_plain_text() -> None:
    assert make_reader(Selection(unit="file")).read(b"\xef\xbb\xbfa\n\nb\n").texts == [b"a\n\nb\n"]
    assert make_reader(Selection(unit="file")).read(b"a\xff").faults == {0: "not UTF-8, byte 2"}
