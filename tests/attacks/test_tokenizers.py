"""Hostile `tokenizer.json` files: no abort, no panic, no memory for ids that nobody has."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.internals import MOST_TOKEN_ID, load_decoder, load_tokenizer, no_panics, replace, require_loadable
from tests.internals import ModalitiesTokenizer as Tokenizer
from tests.internals import with_special_tokens as _with_special_tokens

import penstock as ps
from penstock import pack
from penstock.errors import Corrupt, PenstockError, PrepareError, TooLarge
from penstock.store import LocalStore

PLAIN: dict[str, Any] = {
    "version": "1.0",
    **dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")),
    "added_tokens": [],
    "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1, "</s>": 2}, "unk_token": "[UNK]"},
}
ADDED = {"content": "z", **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)}


def template(*pieces: Any, tokens: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": list(pieces), "pair": [], "special_tokens": tokens or {}}


SPECIAL = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}


def hostile() -> Iterator[tuple[str, dict[str, Any]]]:
    for number in (MOST_TOKEN_ID + 1, 1 << 28, 1 << 31, (1 << 32) - 1):
        for model in (
            {"type": "WordLevel", "vocab": {"</s>": number}, "unk_token": "</s>"},
            {"type": "BPE", "vocab": {"</s>": number}, "merges": []},
            {
                **{"type": "WordPiece", "vocab": {"</s>": number}, "unk_token": "</s>"},
                **{"continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
            },
        ):
            yield f"{model['type']} {number}", {"model": model}
        yield f"added {number}", {"added_tokens": [{"id": number, **ADDED}]}
        cls = {"[CLS]": {"id": "[CLS]", "ids": [number], "tokens": ["[CLS]"]}}
        yield f"template {number}", {"post_processor": template(SPECIAL, TEXT, tokens=cls)}
    # An id of the template that no vocabulary holds is written into a dataset as any other.
    cls = {"[CLS]": {"id": "[CLS]", "ids": [3], "tokens": ["[CLS]"]}}
    yield "template beyond", {"post_processor": template(SPECIAL, TEXT, tokens=cls)}
    yield "template without its token", {"post_processor": template(SPECIAL, TEXT)}
    yield "no tokens", {"model": {**PLAIN["model"], "vocab": {}}}
    yield "unigram", {"model": {"type": "Unigram", "unk_id": 1 << 63, "vocab": [["a", 0.0]]}}


def written(path: Path, change: dict[str, Any]) -> Path:
    path.write_text(json.dumps(copy.deepcopy(PLAIN) | change))
    return path


@pytest.mark.parametrize(("name", "change"), list(hostile()), ids=lambda one: one if isinstance(one, str) else "")
def test_a_hostile_file(name: str, change: dict[str, Any], tmp_path: Path, confined: Callable[..., Any]) -> None:
    path = written(tmp_path / "tokenizer.json", change)

    def look() -> Any:
        return load_tokenizer(path, LocalStore(), eos="</s>", special_tokens=True)

    found = confined(look)
    assert isinstance(found, PenstockError), found
    if name.endswith(str(1 << 31)) or name.endswith(str((1 << 32) - 1)):
        assert isinstance(confined(lambda: load_decoder(path)), TooLarge)

        def special() -> None:
            with _with_special_tokens(Tokenizer(str(tmp_path), None, ("a",))):
                pass

        assert isinstance(confined(special), PenstockError)


def test_padding_to_any_length_is_left_out(tmp_path: Path, confined: Callable[..., Any]) -> None:
    padding = {"strategy": {"Fixed": 1 << 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    path = written(tmp_path / "tokenizer.json", {"padding": {**padding, "pad_type_id": 0, "pad_token": "a"}})
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n')

    def look() -> int:
        return pack(tmp_path / "x.jsonl", tmp_path / "x.pbin", tokenizer=path, eos="</s>", workers=1).tokens

    assert confined(look, 2 << 30) == 2


def test_a_file_that_ends_its_process_is_loaded_in_another_one_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the ids do not show: as if the library had a fault that nobody knows.
    replace(monkeypatch, "most_token_id", 1 << 40)
    replace(monkeypatch, "probe_bytes", 1 << 29)
    path = written(tmp_path / "tokenizer.json", {"model": {"type": "BPE", "vocab": {"</s>": 1 << 31}, "merges": []}})
    with pytest.raises(Corrupt, match="crashes the process that uses it: found signal 6"):
        require_loadable(path.read_bytes(), str(path))


def replacing(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": replacing({"Regex": ""}, "x" * 100_000)},
        {"normalizer": {"type": "Sequence", "normalizers": [replacing({"String": "\u4e00"}, "\u4e00" * 60)] * 3}},
        {"normalizer": {"type": "Prepend", "prepend": "a" * 5_000_000}},
        {"post_processor": template(*[TEXT] * 40_000)},
    ],
    ids=["replace", "replace again", "prepend", "template"],
)
def test_a_text_that_grows(change: dict[str, Any], tmp_path: Path, confined: Callable[..., Any]) -> None:
    path = written(tmp_path / "tokenizer.json", change)
    found = confined(lambda: load_tokenizer(path, LocalStore(), eos="</s>", special_tokens=True))
    assert isinstance(found, Corrupt), found
    assert "64 times" in str(found) or "signal" in str(found)


def test_normalizers_of_real_models_are_taken(tmp_path: Path) -> None:
    known = [{"type": "Prepend", "prepend": "\u2581"}, replacing({"String": " "}, "\u2581"), {"type": "NFKC"}]
    path = written(tmp_path / "tokenizer.json", {"normalizer": {"type": "Sequence", "normalizers": known}})
    require_loadable(path.read_bytes(), str(path))


def test_equal_files_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    real = subprocess.run

    def run(*given: Any, **how: Any) -> Any:
        ran.append(given)
        return real(*given, **how)

    monkeypatch.setattr(subprocess, "run", run)
    data = json.dumps(PLAIN | {"version": "1.0", "x": "once"}).encode()
    for _ in range(3):
        require_loadable(data, "x")
    assert len(ran) == 1


def test_panics_and_nothing_else_change_their_type() -> None:
    class PanicException(BaseException):
        pass

    with pytest.raises(Corrupt, match="what: found PanicException: no entry"), no_panics("what", "x"):
        raise PanicException("no entry\nmore")
    for kind in (KeyboardInterrupt, SystemExit, ValueError):
        with pytest.raises(kind), no_panics("what", "x"):
            raise kind


@pytest.mark.parametrize("added", [5, "x", [], [1], {"0": 1}, {"x": {}}, {"0": {"content": 5}}, {"9" * 5000: {}}])
def test_added_tokens_of_a_config_that_are_none(added: Any, tmp_path: Path) -> None:
    written(tmp_path / "tokenizer.json", {})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    if added in ([], {"0": {"content": 5}}):
        load_tokenizer(tmp_path, LocalStore(), eos="</s>", special_tokens=True)
    else:
        with pytest.raises(Corrupt):
            load_tokenizer(tmp_path, LocalStore(), eos="</s>", special_tokens=True)


@pytest.mark.parametrize("unk", ["<unk>", ""])
def test_an_unknown_token_that_is_not_in_the_vocabulary(unk: str, tmp_path: Path) -> None:
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "</s>": 2}, "merges": [], "unk_token": unk}
    tokenizer = written(tmp_path / "tokenizer.json", {"model": model})
    data = tmp_path / "a.jsonl"
    data.write_text('{"text": "ab"}\n{"text": "az"}\n{"text": "ba"}\n')
    with pytest.raises(PrepareError, match=r"line 2: .*not found in the vocabulary"):
        pack(data, tmp_path / "a.pbin", tokenizer=tokenizer, eos="</s>")
    pack(data, tmp_path / "a.pbin", tokenizer=tokenizer, eos="</s>", on_error="skip")
    assert [one["tokens"].tolist() for one in ps.open(str(tmp_path / "a.pbin"))] == [[0, 1, 2], [1, 0, 2]]
