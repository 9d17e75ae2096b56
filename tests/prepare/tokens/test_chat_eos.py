"""Where conversations get an EOS token, whether it is trained on, and that documents may end in another token."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tests.internals import decode_manifest, encode_manifest, main
from tests.prepare.chat_styles import Style, write_tokenizer
from tests.prepare.conftest import write_lines

import penstock as ps
from penstock.errors import ConfigError

ANSWER = "{% generation %}{{ m.content ~ END }}{% endgeneration %}"
TURN = (
    "{{ m.role ~ ':' }}{% if m.role == 'assistant' %}"
    + ANSWER
    + "{% else %}{{ m.content ~ END }}{% endif %}{{ AFTER }}"
)
ASKED, SAID = {"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}
EOS = "</s>"

CASES: dict[str, tuple[str, str, list[Any], str, str, bool, str, bool]] = {
    # name: (end of a turn, what follows it, messages, rule, EOS that is appended, whether it is trained on,
    #        text that is trained on before it, whether no trained token ends the last answer)
    "no end token": ("", "\n", [ASKED, SAID], "auto", EOS, True, "r", False),
    "no end token, no line end": ("", "", [ASKED, SAID], "auto", EOS, True, "r", False),
    "no end token, never": ("", "\n", [ASKED, SAID], "never", "", False, "r", True),
    "EOS": (EOS, "", [ASKED, SAID], "auto", "", False, "r" + EOS, False),
    "EOS and a line end": (EOS, "\n", [ASKED, SAID], "auto", "", False, "r" + EOS, False),
    "EOS and white space, always": (EOS, " \n\t\n", [ASKED, SAID], "always", EOS, False, "r" + EOS, False),
    "EOS, always": (EOS, "", [ASKED, SAID], "always", "", False, "r" + EOS, False),
    "EOS, never": (EOS, "\n", [ASKED, SAID], "never", "", False, "r" + EOS, False),
    "another end token": ("<|im_end|>", "\n", [ASKED, SAID], "auto", EOS, False, "r<|im_end|>", False),
    "another end token, never": ("<|im_end|>", "\n", [ASKED, SAID], "never", "", False, "r<|im_end|>", False),
    "the user speaks last": ("<|im_end|>", "\n", [ASKED, SAID, ASKED], "auto", EOS, False, "r<|im_end|>", False),
    "the user speaks last, no end token": ("", "\n", [ASKED, SAID, ASKED], "auto", EOS, False, "r", True),
    "the last answer is not trained on": (
        *("", "\n", [ASKED, SAID, ASKED, {**SAID, "weight": 0}], "auto", EOS, False, "r", True),
    ),
    "an end that is not marked": ("", "<|im_end|>\n", [ASKED, SAID], "auto", EOS, False, "r", True),
}


def packed(bpe2: Path, folder: Path, template: str, rows: list[Any], **options: Any) -> tuple[Any, Any, Path]:
    tokenizer = folder / "tokenizer"
    if not tokenizer.exists():
        write_tokenizer(bpe2, tokenizer, Style(template, "<s>", EOS))
    lines = write_lines(folder / "in.jsonl", rows)
    how: dict[str, Any] = {"tokenizer": tokenizer, "chat": True, "executor": "inline"} | options
    report = ps.pack(lines, folder / "out.pbin", **how)
    return ps.open(folder / "out.pbin"), report, tokenizer


@pytest.mark.parametrize("name", CASES)
def test_the_end_of_a_conversation(name: str, bpe2: Path, tmp_path: Path) -> None:
    end, after, messages, rule, appended, trained, before, endless = CASES[name]
    turn = TURN.replace("END", repr(end)).replace("AFTER", repr(after))
    template = "{% for m in messages %}" + turn + "{% endfor %}"
    source, report, tokenizer = packed(bpe2, tmp_path, template, [{"messages": messages}] * 3, chat_eos=rule)
    text = "".join(f"{m['role']}:{m['content']}{end}{after}" for m in messages)
    reference = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    for document in map(source.__getitem__, range(3)):
        expected = reference.encode(text + appended, add_special_tokens=False).ids
        assert document["tokens"].tolist() == expected
        marked = document["tokens"][document["loss_mask"].astype(bool)].tolist()
        assert reference.decode(marked, skip_special_tokens=False) == before + (appended if trained else "")
    assert report.num_endless == (3 if endless else 0)
    assert [one.line for one in report.endless] == ([1, 2, 3] if endless else [])
    assert ps.verify(tmp_path / "out.pbin", depth="full") == []


def test_a_message_says_which_answers_have_no_end(
    bpe2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = "{% for m in messages %}" + TURN.replace("END", "''").replace("AFTER", "'\\n'") + "{% endfor %}"
    tokenizer = write_tokenizer(bpe2, tmp_path / "tokenizer", Style(template, "<s>", EOS))
    lines = write_lines(tmp_path / "in.jsonl", [{"messages": [ASKED, SAID]}])
    command = [
        "pack",
        f"{lines}",
        "-o",
        f"{tmp_path}/a.pbin",
        "--tokenizer",
        f"{tokenizer}",
        "--chat",
        "--executor=inline",
    ]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--chat-eos", "never"])
    assert ended.value.code == 0
    said = capsys.readouterr().err
    assert "the last answer of 1 conversation has no end token in the loss mask" in said
    assert "in.jsonl line 1. " in said
    with pytest.raises(ConfigError, match="this option only applies to conversations"):
        ps.pack(lines, tmp_path / "b.pbin", tokenizer=tokenizer, chat_eos="never")


def test_documents_that_end_in_other_tokens_are_legal(bpe2: Path, tmp_path: Path) -> None:
    """In every format, and after every verb that makes another dataset of them."""
    template = "{% for m in messages %}" + TURN.replace("END", "'</s>'").replace("AFTER", "'\\n'") + "{% endfor %}"
    rows = [{"messages": [ASKED, {**SAID, "content": "r" * n}]} for n in range(1, 9)]
    source, report, _ = packed(bpe2, tmp_path, template, rows)
    documents = [source[n]["tokens"].tolist() for n in range(8)]
    assert {one[-1] for one in documents} == {201}
    assert {one[-2] for one in documents} == {source.eos_id}
    out = tmp_path / "out.pbin"
    for name, how in {"c.idx": {}, "c.zarr": {"to": "flat-tokens"}, "c/": {"file_tokens": 20, "to": "pbin"}}.items():
        ps.convert(out, f"{tmp_path}/{name}", **how)
        copied: Any = ps.open(f"{tmp_path}/{name}")
        assert [copied[n]["tokens"].tolist() for n in range(8)] == documents
        assert name == "c/" or copied.manifest.digest == report.manifest.digest
        assert ps.verify(f"{tmp_path}/{name}", depth="full") == []


def test_eos_is_stripped_where_it_is(tmp_path: Path) -> None:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=7) as writer:
        writer.write_batch({"tokens": [[1, 7], [2], [3, 7, 4], [5, 7]]})
    ps.convert(tmp_path / "a.pbin", tmp_path / "b.pbin", eos=("strip", 7))
    source: Any = ps.open(tmp_path / "b.pbin")
    assert [np.asarray(source[n]["tokens"]).tolist() for n in range(4)] == [[1], [2], [3, 7, 4], [5]]


def test_unfinished_work_with_another_rule_is_not_mixed(bpe2: Path, tmp_path: Path) -> None:
    template = "{% for m in messages %}" + TURN.replace("END", "''").replace("AFTER", "'\\n'") + "{% endfor %}"
    rows = [{"messages": [ASKED, SAID]}] * 40
    tokenizer = write_tokenizer(bpe2, tmp_path / "tokenizer", Style(template, "<s>", EOS))
    lines = write_lines(tmp_path / "in.jsonl", rows)
    how: dict[str, Any] = {"tokenizer": tokenizer, "chat": True, "executor": "inline", "task_bytes": 500}
    ps.pack(lines, tmp_path / "out.pbin", part=(0, 3), **how)
    with pytest.raises(ConfigError, match="unfinished work for this output differs: --chat-eos"):
        ps.pack(lines, tmp_path / "out.pbin", finish=True, chat_eos="never", **how)


def test_verify_names_conversations_of_version_0_2_0(
    bpe2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its side files record no `chat-eos`; only its rules can have changed what is trained on."""
    template = "{% for m in messages %}" + TURN.replace("END", "'</s>'").replace("AFTER", "'\\n'") + "{% endfor %}"
    _, _, tokenizer = packed(bpe2, tmp_path, template, [{"messages": [ASKED, SAID]}])
    side = tmp_path / "out.pbin.penstock"
    old = decode_manifest(side.read_bytes())
    options = {name: value for name, value in old.options.items() if name != "chat-eos"}
    side.write_bytes(encode_manifest(dataclasses.replace(old, options=options)))
    [found] = ps.verify(tmp_path / "out.pbin", depth="quick")
    assert (found.code, found.severity) == ("pbin.old-chat", "warning")
    assert f"penstock pack in.jsonl -o {tmp_path}/out.pbin" in str(found.fix)
    assert "--chat --field messages --overwrite" in str(found.fix)
    assert "message marks" in str(found.found)
    command = shlex.split(str(found.fix))[3:]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([*(f"{tokenizer}" if one == old.tokenizer else one for one in command), "--executor=inline"])
    assert ended.value.code == 0
    assert ps.verify(tmp_path / "out.pbin", depth="full") == []


def test_markers_that_are_not_tokens_are_named(bpe2: Path, tmp_path: Path) -> None:
    template = "{% for m in messages %}<|im_start|><|nope|>{{ m.role }}:"
    template += "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    packed(bpe2, tmp_path, template, [{"messages": [ASKED, SAID]}])
    [found] = ps.verify(tmp_path / "out.pbin", depth="quick")
    assert (found.code, found.severity) == ("pbin.chat-markers", "warning")
    assert str(found.found).startswith("<|nope|> in the chat template")
