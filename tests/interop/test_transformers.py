"""Conversations as `apply_chat_template` of transformers renders, tokenises and masks them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peers
import pytest
from chat_goldens import render_shapes
from tests.prepare.chat_styles import STYLES, conversations, read_goldens, write_tokenizer

import penstock as ps

LINE_END = 201
GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Style → what transformers makes of its conversations, with marks and without."""
    folder = tmp_path_factory.mktemp("chat")
    asked: list[dict[str, Any]] = []
    for name, style in STYLES.items():
        for marked in (True, False):
            path = folder / f"{name}-{marked}"
            write_tokenizer(GOLDEN / "modalities/tokenizers/bpe2", path, style, None if marked else style.unmarked)
            asked.append({"tokenizer": str(path), "conversations": conversations(style), "marked": marked})
    script = peers.SCRIPTS / "transformers_chat.py"
    found = peers.run_script("transformers", script, asked)
    return {Path(one["tokenizer"]).name: {**one, "found": two} for one, two in zip(asked, found, strict=True)}


def chosen(ids: list[int], mask: list[int]) -> list[int]:
    """The ids that a mask chooses, without line ends."""
    return [one for one, said in zip(ids, mask, strict=True) if said and one != LINE_END]


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("name", STYLES)
def test_chat_styles(name: str, marked: bool, told: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    case = told[f"{name}-{marked}"]
    lines = tmp_path / "in.jsonl"
    lines.write_text("".join(json.dumps(one) + "\n" for one in case["conversations"]))
    ps.pack(lines, tmp_path / "out.pbin", tokenizer=case["tokenizer"], chat=True, executor="inline")
    source: Any = ps.open(tmp_path / "out.pbin")
    # A template that marks nothing has no mask in transformers: that of the marked one is what is to be found.
    masks = [one["mask"] for one in told[f"{name}-True"]["found"]]
    for index, (one, mask) in enumerate(zip(case["found"], masks, strict=True)):
        document = source[index]
        ids, found = document["tokens"].tolist(), document["loss_mask"].astype(int).tolist()
        if len(ids) == len(one["ids"]) + 1:
            assert found.pop() == 0, "an answer that has an end token doesn't end in the EOS that is appended"
            ids.pop()
        assert ids == one["ids"], f"conversation {index}"
        if marked:
            assert found == mask, f"conversation {index}"
        else:  # what a template puts behind an answer is of the answer then
            told_ids = told[f"{name}-True"]["found"][index]["ids"]
            assert chosen(ids, found) == chosen(told_ids, mask), f"conversation {index}"


def test_an_answer_without_end_token_ends_in_eos(tmp_path: Path) -> None:
    """What transformers renders, and an EOS that is trained on: else a model doesn't learn to stop."""
    template = (
        "{% for m in messages %}{{ m.role ~ ':' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '\\n' }}{% endfor %}"
    )
    style = STYLES["chatml"]
    tokenizer = write_tokenizer(GOLDEN / "modalities/tokenizers/bpe2", tmp_path / "tokenizer", style, template)
    rows = conversations(style)
    case = {"tokenizer": str(tokenizer), "conversations": rows, "marked": True}
    [answers] = peers.run_script("transformers", peers.SCRIPTS / "transformers_chat.py", [case])
    lines = tmp_path / "in.jsonl"
    lines.write_text("".join(json.dumps(one) + "\n" for one in rows))
    report = ps.pack(lines, tmp_path / "out.pbin", tokenizer=tokenizer, chat=True, executor="inline")
    source: Any = ps.open(tmp_path / "out.pbin")
    ends_in_answer = [row["messages"][-1]["role"] == "assistant" for row in rows]
    for index, (one, is_answer) in enumerate(zip(answers, ends_in_answer, strict=True)):
        document = source[index]
        assert document["tokens"].tolist() == [*one["ids"], source.eos_id]
        assert document["loss_mask"].astype(int).tolist() == [*one["mask"], int(is_answer)]
    assert report.num_endless == ends_in_answer.count(False)


def test_goldens_are_what_transformers_tells(told: dict[str, dict[str, Any]]) -> None:
    expected = {name: told[f"{name}-True"]["found"] for name in STYLES}
    assert json.loads((GOLDEN / "chat" / "expected.json").read_text()) == expected


def test_goldens_of_shapes_are_what_transformers_tells(tmp_path: Path) -> None:
    """`tests/prepare/tokens/test_chat_parity.py` compares `pack` with them; `chat_goldens.py` writes them again."""
    assert read_goldens(GOLDEN) == render_shapes(tmp_path)
