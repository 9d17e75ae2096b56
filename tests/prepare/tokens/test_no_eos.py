"""Documents without an EOS token: `--eos none` in all formats, which is the default of flat-tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tests.internals import main, replace
from tests.prepare.chat_styles import Style, write_tokenizer
from tests.prepare.conftest import EOS, write_lines
from tests.prepare.tokens import test_sentencepiece, test_tiktoken

import penstock as ps
from penstock.errors import ConfigError
from penstock.prepare import PackReport

Pack = Callable[..., PackReport]

TEXTS = ["a b", "", "日本 😀 fox", f"ends in it {EOS}", EOS, "the quick brown fox " * 30, "x"]
OUTPUTS = {
    "pbin": ("out.pbin", {}),
    "megatron": ("out", {"to": "megatron"}),
    "mds": ("out", {"to": "mds"}),
    "flat-tokens": ("out.zarr", {}),
    "files of pbin": ("out", {"file_tokens": 100}),
    "files of megatron": ("out", {"file_tokens": 100, "to": "megatron"}),
    "files of flat-tokens": ("out", {"file_tokens": 100, "to": "flat-tokens"}),
}


def ids_of(folder: Path, texts: list[str]) -> list[list[int]]:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in texts if text]


def documents_of(path: Path) -> list[list[int]]:
    source = ps.open(path)
    return [source[index]["tokens"].tolist() for index in range(len(source))]


def records_no_eos(path: Path) -> bool:
    """Whether the dataset and all side files in it record that there is no EOS token."""
    files = [*path.parent.glob(f"{path.name}*.penstock"), *(path.rglob("*.penstock") if path.is_dir() else ())]
    files = [file / "manifest.json" if file.is_dir() else file for file in files]
    found = [json.loads(file.read_bytes()[: file.read_bytes().rindex(b"}") + 1]) for file in files if file.is_file()]
    return bool(found) and all(one.get("eos_id") is None and one["options"]["eos"] == "none" for one in found)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in.jsonl", ({"text": text} for text in TEXTS))


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("name", OUTPUTS)
def test_documents_are_the_ids_of_their_texts(
    name: str, long: bool, lines: Path, bpe2: Path, made: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if long:
        replace(monkeypatch, "long_tokens", 2)
    file, options = OUTPUTS[name]
    report = made(lines, tmp_path / file, eos="none", on_error="skip", **options)
    expected = ids_of(bpe2, TEXTS)
    assert documents_of(tmp_path / file) == expected
    assert (report.eos, report.tokens) == (None, sum(map(len, expected)))
    assert records_no_eos(tmp_path / file)
    assert ps.verify(tmp_path / file, depth="full") == []
    assert ps.open(tmp_path / file).eos_id is None if "mds" not in name else True


def test_flat_tokens_have_none_by_default(lines: Path, bpe2: Path, made: Pack, tmp_path: Path) -> None:
    """The arrays as the specification has them: a tokenizer that names no EOS token needs no option."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    shutil.copy(bpe2 / "tokenizer.json", folder)
    made(lines, tmp_path / "a.zarr", tokenizer=folder, on_error="skip")
    documents = ids_of(bpe2, TEXTS)
    encoded = np.fromfile(tmp_path / "a.zarr" / "encoded_tokens" / "0", "<u4")
    starts = np.fromfile(tmp_path / "a.zarr" / "seq_starts" / "0", "<u8")
    expected = [2 * token + (place == 0) for ids in documents for place, token in enumerate(ids)]
    assert encoded[: len(expected)].tolist() == expected
    assert starts[: len(documents) + 1].tolist() == [0, *np.cumsum([len(ids) for ids in documents]).tolist()]
    with pytest.raises(ConfigError, match="the EOS token is unknown"):
        made(lines, tmp_path / "a.pbin", tokenizer=folder, on_error="skip")


def test_flat_tokens_get_the_token_that_is_named(lines: Path, bpe2: Path, made: Pack, tmp_path: Path) -> None:
    made(lines, tmp_path / "a.zarr", eos=EOS, on_error="skip")
    assert documents_of(tmp_path / "a.zarr") == [ids if ids[-1] == 0 else [*ids, 0] for ids in ids_of(bpe2, TEXTS)]
    assert ps.open(tmp_path / "a.zarr").eos_id == 0


@pytest.mark.parametrize("dry", [False, True])
def test_the_command_line_says_so_in_one_line(
    dry: bool, lines: Path, bpe2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(output: str, *options: str) -> list[str]:
        command = ["pack", str(lines), "-o", str(tmp_path / output), "--tokenizer", str(bpe2), "--on-error=skip"]
        with pytest.raises(SystemExit) as ended:
            main([*command, "--executor=inline", *options, *["--dry-run"] * dry])
        assert ended.value.code == 0
        return [line for line in capsys.readouterr().err.splitlines() if "EOS" in line]

    [line] = said("a.zarr")
    assert line == "no EOS token is appended to documents, as the format flat-tokens specifies; --eos TOKEN appends it"
    assert said("b.zarr", "--eos", EOS) == said("c.zarr", "--eos", "none") == said("d.pbin") == []


@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
def test_models_without_an_eos_token(engine: str, tmp_path: Path) -> None:
    _, found = test_tiktoken.run(tmp_path, eos="none", pretokenizer="gpt2", engine=engine)
    assert found == [ids[:-1] for ids in test_tiktoken.plain(test_tiktoken.PATTERNS["gpt2"], -1)]
    (tmp_path / "o.pbin").unlink()
    model = test_sentencepiece.model(eos_id=-1)
    _, found = test_sentencepiece.run(tmp_path, model, eos="none", engine=engine)
    assert found == [ids[:-1] for ids in test_sentencepiece.plain(model, -1)]


def test_windows_have_the_documents_of_the_index(lines: Path, bpe2: Path, made: Pack, tmp_path: Path) -> None:
    lengths = [len(ids) for ids in ids_of(bpe2, TEXTS)]
    expected = np.repeat(np.arange(1, len(lengths) + 1), lengths)[:-1]
    for name in ("pbin", "megatron", "flat-tokens", "files of pbin"):
        path = tmp_path / name
        file, options = OUTPUTS[name]
        made(lines, path / file, eos="none", on_error="skip", **options)
        window = ps.Chunk(sum(lengths) - 1, labels="shift")(ps.open(path / file))[0]
        np.testing.assert_array_equal(window["segment_ids"], expected)


def test_conversions_know_that_there_is_none(lines: Path, bpe2: Path, made: Pack, tmp_path: Path) -> None:
    texts = [text for text in TEXTS if EOS not in text]
    write_lines(lines, ({"text": text} for text in texts))
    made(lines, tmp_path / "none.zarr", on_error="skip")
    made(lines, tmp_path / "eos.pbin", on_error="skip")
    ps.convert(tmp_path / "eos.pbin", tmp_path / "stripped.zarr", eos=("strip", 0))
    assert documents_of(tmp_path / "stripped.zarr") == documents_of(tmp_path / "none.zarr") == ids_of(bpe2, texts)
    none, stripped = (ps.open(tmp_path / name).manifest.digest for name in ("none.zarr", "stripped.zarr"))
    assert none == stripped
    ps.convert(tmp_path / "none.zarr", tmp_path / "added.pbin", eos=("add", 0))
    assert (tmp_path / "added.pbin").read_bytes() == (tmp_path / "eos.pbin").read_bytes()
    ps.convert(tmp_path / "none.zarr", tmp_path / "same.pbin")
    assert (documents_of(tmp_path / "same.pbin"), ps.open(tmp_path / "same.pbin").eos_id) == (ids_of(bpe2, texts), None)
    with pytest.raises(ConfigError, match="document 0 doesn't end with the EOS to strip"):
        ps.convert(tmp_path / "none.zarr", tmp_path / "no.pbin", eos=("strip", 0))


def test_unfinished_work_with_another_eos_is_an_error(lines: Path, bpe2: Path, made: Pack, tmp_path: Path) -> None:
    """As version 0.2.0 left it, which appended the tokenizer's own EOS token."""
    options: dict[str, Any] = {"on_error": "skip", "task_bytes": 60}
    made(lines, tmp_path / "a.zarr", eos=EOS, part=(0, 2), **options)
    with pytest.raises(ConfigError, match="unfinished work for this output differs: --eos") as caught:
        made(lines, tmp_path / "a.zarr", **options)
    assert (caught.value.found, caught.value.expected) == ("none", EOS)
    made(lines, tmp_path / "a.zarr", eos=EOS, **options)
    assert documents_of(tmp_path / "a.zarr") == [ids if ids[-1] == 0 else [*ids, 0] for ids in ids_of(bpe2, TEXTS)]
    made(lines, tmp_path / "b.zarr", part=(0, 2), **options)
    made(lines, tmp_path / "b.zarr", **options)
    assert documents_of(tmp_path / "b.zarr") == ids_of(bpe2, TEXTS)


CHAT = "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"


@pytest.mark.parametrize(
    ("output", "options", "appends"),
    [
        ("a.zarr", {}, False),
        ("a.zarr", {"chat_eos": "never"}, False),
        ("a.zarr", {"chat_eos": "auto"}, True),
        ("a.zarr", {"chat_eos": "always"}, True),
        ("a.zarr", {"eos": "</s>"}, True),
        ("a.zarr", {"eos": "</s>", "chat_eos": "never"}, False),
        ("a.pbin", {"eos": "none"}, False),
        ("a.pbin", {"eos": "none", "chat_eos": "never"}, False),
        ("a.pbin", {}, True),
    ],
)
def test_conversations(output: str, options: dict[str, Any], appends: bool, bpe2: Path, tmp_path: Path) -> None:
    write_tokenizer(bpe2, tmp_path / "tokenizer", Style(CHAT, "<s>", "</s>"))
    rows = [{"messages": [{"role": "assistant", "content": text}]} for text in ("a b", "c")]
    lines = write_lines(tmp_path / "in.jsonl", rows)
    options = {"tokenizer": tmp_path / "tokenizer", "chat": True, "executor": "inline"} | options
    ps.pack(lines, tmp_path / output, **options)
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer" / "tokenizer.json"))
    end = [reference.token_to_id("</s>")] * appends
    source = ps.open(tmp_path / output)
    for index, text in enumerate(("assistant:a b", "assistant:c")):
        assert source[index]["tokens"].tolist() == reference.encode(text, add_special_tokens=False).ids + end
        assert source[index]["loss_mask"].tolist()[-1] == 1


def test_an_eos_rule_that_contradicts_the_token_is_an_error(lines: Path, bpe2: Path, tmp_path: Path) -> None:
    for rule in ("auto", "always"):
        with pytest.raises(ConfigError, match="can't get an EOS token with --eos none"):
            ps.pack(lines, tmp_path / "a.pbin", tokenizer=bpe2, chat=True, eos="none", chat_eos=rule)  # type: ignore[arg-type]
