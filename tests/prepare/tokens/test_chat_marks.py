"""Marks in chat data: which messages are trained on, and what is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.prepare.chat_styles import STYLES, write_tokenizer
from tests.prepare.conftest import write_lines
from tokenizers import Tokenizer

import penstock as ps
from penstock.errors import PrepareError

ANSWERS = ("First.", "Second!", "Third?")


@pytest.fixture(params=["template", "unmarked"])
def tokenizer(request: pytest.FixtureRequest, bpe2: Path, tmp_path: Path) -> Path:
    style = STYLES["chatml"]
    return write_tokenizer(bpe2, tmp_path / "tokenizer", style, getattr(style, request.param))


def conversation(*marks: dict[str, Any], user: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a question and an answer for each of `marks`, which are added to the answer."""
    messages: list[dict[str, Any]] = []
    for mark, answer in zip(marks, ANSWERS, strict=False):
        messages += [
            {"role": "user", "content": "Go on"} | (user or {}),
            {"role": "assistant", "content": answer} | mark,
        ]
    return {"messages": messages}


def trained(tokenizer: Path, path: Path) -> list[str]:
    """Return the text of the tokens that are trained on, by the original library, without the template's line ends."""
    reader = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    source: Any = ps.open(path)
    found: list[str] = []
    for index in range(len(source)):
        sample = source[index]
        found.append(reader.decode(sample["tokens"][sample["loss_mask"]].tolist(), skip_special_tokens=True).strip())
    return [text.replace("\n", "") for text in found]


@pytest.mark.parametrize(
    ("off", "on"),
    [
        *(({key: 0}, {key: 1}) for key in ("weight", "loss_mask", "mask", "train", "trainable", "training")),
        ({"weight": 0.0}, {"weight": None}),
        ({"train": False}, {"train": True}),
        ({"masked": True}, {"masked": 0}),
        ({"train": False, "masked": 1}, {}),
    ],
)
def test_marks_choose_messages(off: dict[str, Any], on: dict[str, Any], tokenizer: Path, tmp_path: Path) -> None:
    plain = conversation({}, {}, {})
    rows = [conversation(on, off, on), conversation(off, on, on), conversation(on, on, off), plain, plain]
    user = {key: value for key, value in off.items() if value is not None}
    rows.append(conversation(off, off, on, user=user))  # what no user says is trained anyway
    ps.pack(write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out.pbin", tokenizer=tokenizer, chat=True, workers=1)
    first, second, third = ANSWERS
    expected = [first + third, second + third, first + second, *[first + second + third] * 2, third]
    assert trained(tokenizer, tmp_path / "out.pbin") == expected
    source: Any = ps.open(tmp_path / "out.pbin")
    assert len({source[index]["tokens"].tobytes() for index in range(len(source))}) == 1, "marks don't change ids"


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (conversation({"weight": 0.5}), "message 2: the mark 'weight' is 0.5, not 0, 1, true or false"),
        (conversation({"train": "no"}), "message 2: the mark 'train' is \"no\""),
        (conversation({}, user={"train": True}), "message 1 of user is marked as trained: 'train'"),
        (conversation({}, user={"masked": False}), "message 1 of user is marked as trained: 'masked'"),
        (conversation({"train": 1, "weight": 0}), "message 2: the marks train and weight contradict each other"),
        (conversation({"train_detail": [{"begin_offset": 0}]}), "message 2 has the key 'train_detail'"),
        (conversation({"loss": True}), "message 2 has the key 'loss'"),
        (conversation({"Loss_Weight": 1}), "message 2 has the key 'Loss_Weight'"),
        (
            conversation({"content": [{"type": "text", "text": "a", "weight": 0}]}),
            "a part of message 2 has the key 'weight'",
        ),
    ],
)
def test_other_marks_are_errors(row: dict[str, Any], fault: str, bpe2: Path, tmp_path: Path) -> None:
    tokenizer = write_tokenizer(bpe2, tmp_path / "tokenizer", STYLES["chatml"])
    lines = write_lines(tmp_path / "in.jsonl", [conversation({}), row])
    with pytest.raises(PrepareError) as raised:
        ps.pack(lines, tmp_path / "out.pbin", tokenizer=tokenizer, chat=True, workers=1)
    assert "line 2: " in str(raised.value)
    assert fault in str(raised.value)


def test_marks_in_tables(tokenizer: Path, tmp_path: Path) -> None:
    """Structs of Parquet have a mark in every message, null if the row has none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [conversation({"weight": 0}, {"weight": 1}), conversation({}, {"weight": 0})]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    assert "weight" in json.dumps(pq.read_table(tmp_path / "in.parquet").to_pylist()[1]["messages"][0])
    ps.pack(tmp_path / "in.parquet", tmp_path / "out.pbin", tokenizer=tokenizer, chat=True, workers=1)
    assert trained(tokenizer, tmp_path / "out.pbin") == [ANSWERS[1], ANSWERS[0]]


def test_marks_and_marked_parts_that_change(bpe2: Path, tmp_path: Path) -> None:
    """If a template marks the last answer only, a mark of an earlier one can't be matched to a marked part."""
    last = (
        "{% for m in messages %}{% if m.role == 'assistant' and loop.last %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    tokenizer = write_tokenizer(bpe2, tmp_path / "tokenizer", STYLES["chatml"], last)
    same = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]
    lines = write_lines(tmp_path / "in.jsonl", [{"messages": [*same, {"role": "assistant", "content": "b"}]}])
    with pytest.raises(PrepareError, match="generated text can't be identified"):
        ps.pack(lines, tmp_path / "out.pbin", tokenizer=tokenizer, chat=True, workers=1)
