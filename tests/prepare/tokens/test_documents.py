"""Lines → texts: the same answers as Python's json, with a reason where there is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.prepare.tokens.documents import TextReader, parse_field

LINES = [
    *(b'{"text":"a"}', b'{"text" : "a" , "x" : [ ] } \r', b'\xef\xbb\xbf{"text":"a"}', b'{"text":"\\ud83d\\ude00"}'),
    *(b'{"text":"a","text":"b"}', b'{"text":1,"text":"b"}', b'{"text":"b","text":1}', b'{"te\\u0078t":"a"}'),
    *(
        b'{"text":"a","x":NaN}',
        b'{"text":"a","x":-Infinity}',
        b'{"text":"a","x":1e99999}',
        b'{"text":"a","x":"\\ud800"}',
    ),
    *(
        b'{"text":"a","x":"\xff"}',
        b'{"text":"a","\xff":1}',
        b'{"text":"a","x":"\xed\xa0\x80"}',
        b'{"text":"\xed\xa0\x80"}',
    ),
    *(
        b'{"text":"\\ud800"}',
        b'{"text":"\\ud83d\\u0041"}',
        b'{"text":"\xc0\x80"}',
        b'{"text":"a\tb"}',
        b'{"text":"\x01"}',
    ),
    *(b'{"text":"a","x":01}', b'{"text":"a","x":1.}', b'{"text":"a","x":"\\q"}', b'{"text":"a","x":"\\u12"}'),
    *(
        b'{"text":"a",}',
        b'{"text":"a"}x',
        b'{"text":"a"}\x0b',
        b'{"text":"a"}\x00',
        b'{"text":"a" "x":1}',
        b"{'text':'a'}",
    ),
    *(b'{"text":"a","x":[1,]}', b'{"text":"a","x":{"b":1]}}', b'{"text":"a","x":tru}', b'{"text":"a"/**/}'),
    *(b'{"text":null}', b'{"text":1}', b'{"text":true}', b'{"text":[]}', b'{"text":{}}', b'{"other":"a"}', b"{}"),
    *(b"5", b'"text"', b"null", b'["text"]', b"", b"  ", b'{"text":"a"', b'{"text":"a","x":' + b"1" * 5000 + b"}"),
    *(b'{"text":"a","x":' + b"[" * 30000 + b"]" * 30000 + b"}", b'{"text":"a","x":' + b"[" * 950 + b"]" * 950 + b"}"),
]


def by_json(line: bytes, *keys: str) -> bytes | None:
    """The text of a line by the rules that hold: json's, and UTF-8."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    try:
        return value.encode() if isinstance(value, str) else None
    except UnicodeEncodeError:
        return None


@pytest.mark.parametrize("line", LINES, ids=lambda line: repr(line[:30]))
def test_a_line_alone(line: bytes) -> None:
    found = TextReader("text").read(line + b"\n")
    expected = by_json(line, "text")
    assert found.texts == ([] if expected is None else [expected])
    assert (0 in found.faults) == (expected is None)
    assert len(found.lines) == 1


def test_bad_lines_among_good_ones() -> None:
    found = TextReader("text").read(b"\n".join(LINES) + b"\n")
    expected = [by_json(line, "text") for line in LINES]
    assert found.texts == [text for text in expected if text is not None]
    assert found.places == [place for place, text in enumerate(expected) if text is not None]
    assert sorted(found.faults) == [place for place, text in enumerate(expected) if text is None]
    assert found.lines == LINES


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "a blank line"),
        (b'{"text"', "not JSON: "),
        (b'{"text":"a","x":"\xff"}', "not UTF-8"),
        (b'{"text":null}', "field 'text' is null, not text"),
        (b'{"text":1}', "field 'text' is a number, not text"),
        (b'{"text":false}', "field 'text' is true or false, not text"),
        (b'{"x":"a"}', "no field 'text'"),
        (b'{"messages":[]}', "no field 'text' (fields: messages); use chat=True (--chat) to pack conversations"),
        (b"[]", "the line is a list, not an object"),
        (b'{"text":"\\ud800"}', "field 'text' has a lone surrogate, '\\ud800', which UTF-8 can't hold"),
        (b'{"text":' + b"[" * 30000 + b"]" * 30000 + b"}", "not JSON: nested too deeply"),
    ],
)
def test_reasons(line: bytes, reason: str) -> None:
    assert TextReader("text").read(line + b"\n").faults[0].startswith(reason)


def test_fields_lead_into_objects() -> None:
    lines = [b'{"a":{"b":"x"}}', b'{"a":{"c":1}}', b'{"a":[1]}', b'{"a.b":"z"}', b'{"a":{"b":{}}}']
    found = TextReader("a.b").read(b"\n".join(lines))
    assert found.texts == [b"x"]
    assert found.faults == {
        1: "no field 'a.b' (fields: c)",
        2: "field 'a' is a list, not an object",
        3: "no field 'a.b' (fields: a.b)",
        4: "field 'a.b' is an object, not text",
    }
    assert TextReader(r"a\.b").read(b'{"a.b":"z"}').texts == [b"z"]


@pytest.mark.parametrize("field", ["", ".text", "a..b", "a.", ".".join("abcdefghijklmnopq")])
def test_what_is_no_field(field: str) -> None:
    with pytest.raises(ConfigError, match="not a field name"):
        parse_field(field)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "a", "é", "b"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(JSON, st.booleans(), st.integers(0, 40), st.binary(max_size=2)), max_size=6))
def test_any_lines(made: list[tuple[Any, bool, int, bytes]]) -> None:
    # Valid JSON, and the same with a few bytes put in somewhere.
    lines: list[bytes] = []
    for value, ascii_only, place, inserted in made:
        line = json.dumps({"text": value} if place % 2 else value, ensure_ascii=ascii_only).encode(
            errors="surrogatepass"
        )
        lines.append((line[:place] + inserted + line[place:]).replace(b"\n", b" "))
    found = TextReader("text").read(b"".join(line + b"\n" for line in lines))
    expected = [by_json(line, "text") for line in lines]
    assert found.texts == [text for text in expected if text is not None]
    assert sorted(found.faults) == [place for place, text in enumerate(expected) if text is None]
