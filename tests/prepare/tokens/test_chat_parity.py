"""Chats in every shape that data has, as `apply_chat_template` of transformers renders, tokenizes and masks them.

`tests/interop/test_transformers.py` compares the goldens with the real package and can write them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from tests.internals import main
from tests.prepare.chat_styles import ALL_STYLES, SHAPES, read_goldens, write_tokenizer
from tests.prepare.conftest import write_lines

import penstock as ps

FILLER = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
FILLERS = 250
"""More than 1 % of conversations without an answer is an error."""
NOT_IN_TABLES = {"null in arguments", "parts and text"}
"""Shapes that a table can't hold: a null that is meant looks like a null of the schema, and a column has one type."""
REFUSED = ("the chat template doesn't support them", "the text produces no tokens")
"""What transformers renders and `pack` refuses: tools that the template ignores, and conversations without text."""
UNTRAINED = "no token is generated"
"""Why `on_error="skip"` leaves out conversations that train nothing."""


def beside(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose fields become null fields of `row` in a table."""
    calls = [call for message in row["messages"] for call in message.get("tool_calls") or ()]
    arguments = [call.get("function", call)["arguments"] for call in calls]
    function = {
        "name": "g",
        "strict": True,
        "arguments": "{}" if any(isinstance(a, str) for a in arguments) else {"q": 1},
    }
    call = {"index": 0, "function": function}
    said = {"role": "assistant", "content": FILLER["messages"][1]["content"], "name": "n", "reasoning_content": "r"}
    if isinstance(row["messages"][0]["content"], list):
        said["content"] = [{"type": "text", "text": "b", "cache": "c"}]
    tool = {"type": "function", "function": {"name": "h", "parameters": {"type": "object", "country": "x"}}}
    return {"messages": [{"role": "user", "content": said["content"]}, {**said, "tool_calls": [call]}], "tools": [tool]}


def write_parquet(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def write_saved(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Write what `save_to_disk` of `datasets` writes."""
    table = pa.Table.from_pylist(list(rows))
    path.mkdir()
    with pa.ipc.new_stream(str(path / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (path / "dataset_info.json").write_text("{}")
    return path


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """The conversations as lines, and as tables whose schemas have fields of other rows. Each shape is a file."""
    folder = tmp_path_factory.mktemp("shapes")
    found: dict[str, list[Path]] = {"jsonl": [], "parquet": [], "saved": []}
    for number, (name, row) in enumerate([*SHAPES.items(), ("filler", FILLER)]):
        stem = f"{number:02}"
        many = [row] * (FILLERS if name == "filler" else 1)
        found["jsonl"].append(write_lines(folder / f"{stem}.jsonl", many))
        if name in NOT_IN_TABLES:
            continue
        rows = many if name == "filler" else [*many, beside(row)]
        found["parquet"].append(write_parquet(folder / f"{stem}.parquet", rows))
        found["saved"].append(write_saved(folder / f"{stem}.saved", rows))
    return found


@pytest.mark.parametrize("name", ALL_STYLES)
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
def test_shapes(kind: str, name: str, inputs: dict[str, list[Path]], golden: Path, bpe2: Path, tmp_path: Path) -> None:
    tokenizer = write_tokenizer(bpe2, tmp_path / "tokenizer", ALL_STYLES[name])
    how: dict[str, Any] = {"tokenizer": tokenizer, "chat": True, "executor": "inline", "on_error": "skip"}
    report = ps.pack([str(path) for path in inputs[kind]], tmp_path / "out.pbin", keep_map=True, **how)
    source: Any = ps.open(tmp_path / "out.pbin")
    dropped = {(one.file.partition(".")[0], one.line): one.reason for one in report.dropped}
    documents = iter(range(len(source)))
    for number, (shape, expected) in enumerate(zip(SHAPES, read_goldens(golden)[name], strict=True)):
        if kind != "jsonl" and shape in NOT_IN_TABLES:
            continue
        rows, found = (1 if kind == "jsonl" else 2), dict[int, Any]()
        for line in range(1, rows + 1):
            if (f"{number:02}", line) not in dropped:
                found[line] = source[next(documents)]
        if 1 not in found:
            reason = dropped[f"{number:02}", 1]
            untrained = expected is not None and reason == UNTRAINED and not any(expected["mask"])
            assert expected is None or untrained or reason.endswith(REFUSED), f"{shape}: {reason}"
            continue
        assert expected is not None, f"{shape}: transformers refuses it"
        tokens, mask = found[1]["tokens"].tolist(), found[1]["loss_mask"].astype(int).tolist()
        ids, extra = expected["ids"], len(tokens) - len(expected["ids"])
        assert tokens[: len(ids)] == ids, shape
        assert mask[: len(ids)] == expected["mask"], shape
        assert extra in (0, 1), shape


def test_null_fields_of_tables_are_named(bpe2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table gives every struct the fields of all rows: one line says which nulls were dropped."""
    tokenizer = write_tokenizer(bpe2, tmp_path / "tokenizer", ALL_STYLES["whole"])

    def called(**arguments: Any) -> dict[str, Any]:
        call = {"type": "function", "function": {"name": "f", "arguments": {"l": [None, 1], **arguments}}}
        return {
            "messages": [FILLER["messages"][0], {"role": "assistant", "tool_calls": [call]}],
            "tools": [{"name": "f"}],
        }

    rows = [called(a=1), called(b=2), {**FILLER, "tools": [{"name": "g", "strict": True}]}]
    table = write_parquet(tmp_path / "in.parquet", rows)
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "pack",
                f"{table}",
                "-o",
                f"{tmp_path}/a.pbin",
                "--tokenizer",
                f"{tokenizer}",
                "--chat",
                "--executor=inline",
            ]
        )
    assert ended.value.code == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "null fields" in line]
    assert len(said) == 1
    names = "messages[].tool_calls[].function.arguments.a, messages[].tool_calls[].function.arguments.b, tools[].strict"
    assert f"were dropped: {names}. " in said[0]
    assert "as JSON text" in said[0]
    lines = write_lines(tmp_path / "in.jsonl", rows)
    report = ps.pack(lines, tmp_path / "b.pbin", tokenizer=tokenizer, chat=True, executor="inline")
    assert report.null_fields == ()
    assert (tmp_path / "a.pbin").read_bytes() == (tmp_path / "b.pbin").read_bytes()
