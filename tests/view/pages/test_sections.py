"""Sections in each of their forms; conversations, masks and rows of samples."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.view.pages.conftest import Ask

import penstock as ps
from penstock.view.draw.blocks import Amount, Column, Fault, Figures, Link, Notes, Pairs, Plot, Section, Table, to_json
from penstock.view.draw.html import to_html
from penstock.view.draw.lines import to_lines
from penstock.view.draw.samples import panels as draw
from penstock.view.draw.samples import summary_of
from penstock.view.facts.lengths import _fine_bins  # pyright: ignore[reportPrivateUsage]
from penstock.view.facts.panel import panels

EVIL = "<script>alert(1)</script>\u202e"
BARS = Table([Column("from"), Column("to"), Column("samples", "count")], [(0, 1, 3), (2, 3, 1)])
SECTIONS = [
    Section(None, [Figures([Amount("tokens", 1_240_000_000, "short"), Amount("size", 1500, "bytes")]), None]),
    Section(
        EVIL,
        [
            Pairs([(EVIL, EVIL)]),
            Table([Column("file", "name"), Column("share", "share")], [(Link(EVIL, EVIL), 0.125)], more=2),
            Plot("bars", "Lengths", "samples", BARS),
            Notes([EVIL]),
            Fault(EVIL, path=EVIL, hint=EVIL),
        ],
    ),
]


def test_a_section_has_the_same_figures_in_each_form() -> None:
    for has_scripts in (False, True):
        page = to_html(SECTIONS, has_scripts=has_scripts)
        assert "<script" not in page
        assert "\u202e" not in page
        for word in ("1.24 G", "1.5 kB", "12.5%", "2 more"):
            assert word in page
    lines = list(to_lines(SECTIONS))
    assert [line.split() for line in lines[:2]] == [["tokens", "1.24", "G"], ["size", "1.5", "kB"]]
    assert any(line.endswith("#" * 40) for line in lines)
    found = json.loads(json.dumps(to_json(SECTIONS)))
    assert found[0]["blocks"][0]["amounts"][0]["value"] == 1_240_000_000
    assert [one["block"] for one in found[1]["blocks"]] == ["pairs", "table", "plot", "notes", "fault"]


def test_messages_are_a_conversation() -> None:
    messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": f"4 ```py\n{EVIL}```"}]
    page = draw(panels({"messages": messages, "tags": ["a"]}))
    assert page.count('class="turn ') == 2
    assert '<pre class="text code">' in page
    assert "<script" not in page
    assert 'class="chat"' not in draw(panels({"messages": [{"role": "user"}]}))


def test_a_mask_is_drawn(tmp_path: Path, pages: Ask) -> None:
    page = draw(panels({"loss_mask": np.array([0, 1, 1, 0], np.bool_)}))
    assert "False" not in page
    assert "2 of 4 are on" in page
    columns = {"input_ids": "ndarray:int32", "loss_mask": "ndarray:uint8"}
    with ps.create(tmp_path / "sft", format="mds", columns=columns) as writer:
        writer.write({"input_ids": np.arange(4, dtype=np.int32), "loss_mask": np.array([0, 1, 1, 0], np.uint8)})
    shown = pages(tmp_path / "sft").get("/d/sft/samples").text
    assert shown.count(" masked") == 3  # two tokens, and the legend
    assert "2 in the loss" in shown


def test_rows_are_summarized() -> None:
    rows = [panels({"n": number, "lang": "en" if number % 2 else "de", "id": str(number)}) for number in range(20)]
    assert "0 to 19 in these 20 rows" in str(summary_of(rows, "n", "find"))
    assert "find?where=lang%20%3D%3D%20%27de%27" in str(summary_of(rows, "lang", "find"))
    assert summary_of(rows, "id", "find") is None
    assert summary_of([panels({"n": 10.0**308 * sign}) for sign in (-1, 1) * 8], "n", "find") is None


def test_numbered_files_are_one_row(tmp_path: Path, pages: Ask) -> None:
    for number in range(4):
        (tmp_path / f"part-{number:05}.jsonl").write_text('{"a": 1}\n' * 3)
    (tmp_path / "b.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "cut.pbin").write_bytes(b"\xff" * 30)
    page = pages(tmp_path).get("/shelf").text
    assert page.count('<tr class="parts">') == 1
    assert '"samples">12<' in page
    assert page.count('class="bad"') == 1
    assert all(f"d/part-{number:05}.jsonl/" in page for number in range(4))


@given(st.lists(st.one_of(st.integers(0, 9), st.integers(0, 1 << 40), st.integers(900, 999)), min_size=1, max_size=30))
def test_bins_hold_all_lengths(lengths: list[int]) -> None:
    bins = _fine_bins(np.array(lengths, np.int64))
    assert [one.count for one in bins] == [sum(one.start <= length <= one.stop for length in lengths) for one in bins]
    assert sum(one.count for one in bins) == len(lengths)


@pytest.mark.parametrize("page", ["d/a.jsonl/", "r/run.yaml/"])
def test_figures_as_json(page: str, tmp_path: Path, pages: Ask) -> None:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        writer.write({"tokens": np.array([*range(1, 90), 0], "u2")})
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    recipe = "stream: {path: a.pbin, window: {chunk: {length: 8, labels: shift}}, shuffle: {seed: 5}}"
    (tmp_path / "run.yaml").write_text(f"penstock: 1\nbatch: {{global_batch: 4}}\n{recipe}\n")
    found = pages(tmp_path).get(f"/{page}?part=json").json()
    assert found[0]["blocks"] is not None
    assert any(block["block"] == "figures" for section in found for block in section["blocks"] if block)
