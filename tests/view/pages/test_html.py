"""How messages and figures are written into a page."""

from __future__ import annotations

import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.view.pages.html import words


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("`penstock index a.jsonl` finds it", "<code>penstock index a.jsonl</code> finds it"),
        ("no command", "no command"),
        ("a ` alone", "a ` alone"),
        ("`<script>` & more", "<code>&lt;script&gt;</code> &amp; more"),
    ],
)
def test_commands_in_a_message(text: str, made: str) -> None:
    assert str(words(text)) == made


@given(st.text(alphabet="`<>&'\"ab\u202e\n"))
def test_nothing_in_a_message_is_markup(text: str) -> None:
    rest = str(words(text)).replace("<code>", "").replace("</code>", "")
    assert not set("<>\"'") & set(rest)
    assert "\n" not in rest
    assert html.unescape(rest).count("a") == text.count("a")
