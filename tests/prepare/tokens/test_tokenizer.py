"""Which tokenizer: files and folders, settings as transformers applies them, EOS and widths."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tests.internals import TokenizerSpec, load_spec
from tests.prepare.conftest import with_changes

from penstock.errors import ConfigError, Corrupt, NotFound
from penstock.store import LocalStore

TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "<|eod|>", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {
        "<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]},
        "<|eod|>": {"id": "<|eod|>", "ids": [0], "tokens": ["<|eod|>"]},
    },
}
TRUNCATION = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
LLAMA = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<|im_start|>"}


def spec_of(path: Path, eos: str | None = None, special_tokens: bool = True) -> TokenizerSpec:
    return load_spec(path, LocalStore(), eos=eos, special_tokens=special_tokens)[0]


def ids_of(path: Path, text: str, **options: Any) -> list[int]:
    spec = spec_of(path, **options)
    return spec.load().encode(text, add_special_tokens=spec.special_tokens).ids


def pre_tokenizer(folder: Path) -> Any:
    return json.loads((folder / "tokenizer.json").read_text("utf-8"))["pre_tokenizer"]


def test_a_folder_and_its_file(bpe2: Path) -> None:
    spec = spec_of(bpe2)
    assert (spec.name, spec.eos, spec.eos_id) == ("bpe2", "<|eod|>", 0)
    assert (spec.vocab_size, spec.max_token_id, spec.token_bytes) == (600, 599, 2)
    assert spec.json == (bpe2 / "tokenizer.json").read_bytes()
    assert spec_of(bpe2 / "tokenizer.json").digest == spec.digest


def test_an_eos_of_the_special_tokens_map(bpe2: Path, tmp_path: Path) -> None:
    folder = with_changes(bpe2, tmp_path / "t", {"eos_token": None})
    assert spec_of(folder).eos == "<|eod|>"
    (folder / "special_tokens_map.json").chmod(0o644)
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|im_end|>", "lstrip": false}}')
    assert spec_of(folder).eos_id == 2
    assert spec_of(folder, eos="^").eos_id == 3


def test_no_eos(bpe2: Path, tmp_path: Path) -> None:
    shutil.copy(bpe2 / "tokenizer.json", tmp_path / "tokenizer.json")
    with pytest.raises(ConfigError, match=r"the EOS token is unknown.*'<\|im_start\|>'"):
        spec_of(tmp_path)
    with pytest.raises(ConfigError, match=r"'<\|eos\|>' is not in the vocabulary.*Did you mean '<\|eod\|>'"):
        spec_of(tmp_path, eos="<|eos|>")


# These are the ids that transformers 4.57.6 gives, as fast tokenizers of these folders.
@pytest.mark.parametrize(
    ("config", "model", "text", "ids"),
    [
        ({}, {}, "Hello world", [43, 71, 294, 81, 261, 311, 284]),
        ({"add_prefix_space": True}, {}, "Hello", None),
        ({"eos_token": "<|new|>"}, {}, "a<|new|>b", [67, 600, 68]),
        ({"pad_token": "<pad>", "additional_special_tokens": ["<x1>"]}, {}, "<x1> <pad>", [601, 223, 600]),
        ({"split_special_tokens": True}, {}, "^", [3]),
        ({}, {"post_processor": TEMPLATE}, "a", [1, 67, 0]),
        (LLAMA, {"post_processor": TEMPLATE}, "a", [1, 67]),
        (LLAMA | {"add_eos_token": True}, {}, "a", [1, 67, 0]),
        (LLAMA | {"add_bos_token": False}, {"post_processor": TEMPLATE}, "a", [67]),
        ({"tokenizer_class": "GPTNeoXTokenizerFast"}, {"post_processor": TEMPLATE}, "a", [67]),
        ({}, {"truncation": TRUNCATION}, "abc", [67, 68, 69]),
    ],
)
def test_settings_count_as_in_transformers(
    bpe2: Path, tmp_path: Path, config: dict[str, Any], model: dict[str, Any], text: str, ids: list[int] | None
) -> None:
    folder = with_changes(bpe2, tmp_path / "t", config, **model)
    found = ids_of(folder, text, eos=config.get("eos_token"))
    assert found == (ids_of(bpe2, " " + text) if ids is None else ids)


def test_prefix_space_is_that_of_the_config(bpe2: Path, tmp_path: Path) -> None:
    changed = pre_tokenizer(bpe2) | {"add_prefix_space": True}
    folder = with_changes(bpe2, tmp_path / "t", pre_tokenizer=changed)
    assert ids_of(folder, "a") == [67]
    assert ids_of(folder / "tokenizer.json", "a") == ids_of(bpe2, " a")


def test_flags_of_added_tokens_count(bpe2: Path, tmp_path: Path) -> None:
    token = {
        "content": "<e>",
        "lstrip": True,
        "rstrip": False,
        "normalized": False,
        "single_word": False,
        "special": False,
    }
    config = json.loads((bpe2 / "tokenizer_config.json").read_text("utf-8"))
    added = config["added_tokens_decoder"] | {"600": token}
    folder = with_changes(bpe2, tmp_path / "t", {"added_tokens_decoder": added})
    assert ids_of(folder, "a   <e>b") == [67, 600, 68]
    assert spec_of(folder).max_token_id == 600


def test_special_tokens_can_be_left_out(bpe2: Path, tmp_path: Path) -> None:
    folder = with_changes(bpe2, tmp_path / "t", post_processor=TEMPLATE)
    assert spec_of(folder).around == ((1,), (0,))
    assert spec_of(folder, special_tokens=False).around == ((), ())
    assert ids_of(folder, "a", special_tokens=False) == [67]


@pytest.mark.parametrize(
    ("entries", "added", "token_bytes"),
    [(256, 0, 1), (256, 1, 2), (257, 0, 2), (65_536, 0, 2), (65_536, 1, 4), (65_537, 0, 4)],
)
def test_the_width_holds_added_tokens(tmp_path: Path, entries: int, added: int, token_bytes: int) -> None:
    vocab = {"<unk>": 0} | {f"w{n}": n for n in range(1, entries)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.add_special_tokens([f"<{n}>" for n in range(added)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    spec = spec_of(tmp_path / "tokenizer.json", eos="<unk>")
    assert (spec.vocab_size, spec.token_bytes) == (entries, token_bytes)


def test_refusals(bpe2: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        spec_of(tmp_path / "missing")
    with pytest.raises(NotFound, match=r"no tokenizer\.json"):
        spec_of(tmp_path)
    broken = tmp_path / "broken.json"
    for content in (b"", b"{", b'{"model": 1}', b"\xff\xfe", (bpe2 / "tokenizer.json").read_bytes()[:-500]):
        broken.write_bytes(content)
        with pytest.raises(Corrupt, match=r"not a valid tokenizer\.json") as error:
            spec_of(broken)
        assert error.value.path == str(broken)
    folder = with_changes(bpe2, tmp_path / "t")
    for content in (
        "{",
        "[]",
        '{"added_tokens_decoder": {"x": {}}}',
        '{"added_tokens_decoder": {"900": {"contents": 1}}}',
    ):
        (folder / "tokenizer_config.json").write_text(content)
        with pytest.raises(Corrupt, match="tokenizer"):
            spec_of(folder)
