"""gigatoken against the reference, and what happens where they part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.prepare.conftest import TEXTS, with_changes, write_lines
from tests.prepare.tokens.test_tokenizer import TEMPLATE

from penstock.engine.parts import Probe
from penstock.errors import ConfigError
from penstock.executors import InlineExecutor
from penstock.prepare.tokens import engine_choice
from penstock.prepare.tokens import engines as module
from penstock.prepare.tokens.documents import Texts
from penstock.prepare.tokens.engine_choice import choose_engine, find_disagreement
from penstock.prepare.tokens.engines import (
    EngineChoice,
    GigatokenEngine,
    TokenizersEngine,
    find_difference,
    load_engine,
    odd_texts,
    try_gigatoken,
)
from penstock.prepare.tokens.inputs import describe_inputs
from penstock.prepare.tokens.reading import Selection, make_reader
from penstock.prepare.tokens.tokenizer import TokenizerSpec, load_spec
from penstock.store.local import LocalStore
from penstock.store.place import place_of

STORE = LocalStore()


def spec_of(folder: Path, special_tokens: bool = True) -> TokenizerSpec:
    return load_spec(folder, STORE, eos=None, special_tokens=special_tokens)[0]


@pytest.mark.parametrize("special_tokens", [True, False])
@pytest.mark.parametrize("one_by_one", [0, 1 << 30])
def test_gigatoken_agrees(
    bpe2: Path, tmp_path: Path, special_tokens: bool, one_by_one: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ONE_BY_ONE_TEXTS", one_by_one)
    spec = spec_of(with_changes(bpe2, tmp_path / "t", post_processor=TEMPLATE), special_tokens)
    reference = TokenizersEngine(spec)
    texts = [text.encode() for text in TEXTS] + odd_texts(reference.added_tokens())
    found, expected = GigatokenEngine(spec).encode(texts), reference.encode(texts)
    assert find_difference(texts, found, expected) is None
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])
    for engine in (GigatokenEngine(spec), reference):
        assert [len(part) for part in engine.encode([])] == [0, 0]


def test_a_difference_is_named() -> None:
    ids, lengths = np.array([1, 2, 3, 4], np.uint32), np.array([2, 2])
    difference = find_difference([b"ab", b"cd"], (ids, lengths), (np.array([1, 2, 3, 9], np.uint32), lengths))
    assert str(difference) == "at token 1 of 'cd': [3, 4] instead of [3, 9]"
    shorter = find_difference([b"ab", b"cd"], (ids, lengths), (ids[:3], np.array([2, 1])))
    assert str(shorter) == "at token 1 of 'cd': [3, 4] instead of [3]"


def choose(spec: TokenizerSpec, asked: EngineChoice) -> tuple[str, str | None]:
    load_engine.cache_clear()
    return choose_engine(asked, spec, TokenizersEngine(spec), [b"some text"], InlineExecutor())


def test_the_choice(bpe2: Path) -> None:
    spec = spec_of(bpe2)
    assert choose(spec, "auto") == ("gigatoken", None)
    assert choose(spec, "gigatoken") == ("gigatoken", None)
    assert choose(spec, "tokenizers") == ("tokenizers", None)


def test_what_gigatoken_cant_load(golden: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = spec_of(golden / "modalities" / "tokenizers" / "small1")
    engine, note = choose(spec, "auto")
    assert engine == "tokenizers"
    assert note is not None
    assert "gigatoken can't load it" in note
    assert note in caplog.text
    with pytest.raises(ConfigError, match="gigatoken can't be used with this tokenizer"):
        choose(spec, "gigatoken")


def test_special_tokens_that_are_to_be_split(bpe2: Path, tmp_path: Path) -> None:
    spec = spec_of(with_changes(bpe2, tmp_path / "t", {"split_special_tokens": True}))
    engine, note = choose(spec, "auto")
    assert engine == "tokenizers"
    assert "split" in str(note)


class Wrong:
    """An engine that is wrong about one text."""

    def __init__(self, spec: TokenizerSpec, text: bytes) -> None:
        self._right, self._text = TokenizersEngine(spec), text

    def encode(self, texts: list[bytes]) -> module.Encoded:
        return self._right.encode([b"?" if text == self._text else text for text in texts])


class Panics:
    """An engine that fails as Rust does: by what is no Exception."""

    def encode(self, texts: list[bytes]) -> module.Encoded:
        raise BaseException("index out of bounds")


@pytest.mark.parametrize("text", [b"some text", b"x<|im_end|>y", "日本語テキスト。中文 한국어 가각".encode()])
def test_what_gigatoken_gets_wrong(bpe2: Path, text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(bpe2)
    monkeypatch.setattr(module, "GigatokenEngine", lambda spec: Wrong(spec, text))
    engine, note = choose(spec, "auto")
    assert engine == "tokenizers"
    assert text.decode() in str(note)
    load_engine.cache_clear()


def test_a_panic_is_an_objection(bpe2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GigatokenEngine", lambda spec: Panics())
    load_engine.cache_clear()
    assert try_gigatoken(spec_of(bpe2), [b"a"]) == "BaseException: index out of bounds"
    load_engine.cache_clear()


def test_what_a_part_remembers_is_compared(bpe2: Path) -> None:
    reference = TokenizersEngine(spec_of(bpe2))
    ids = reference.encode([b"some text"])[0].tolist()
    assert find_disagreement(reference, [Probe(0, "some text", ids), Probe(0, "", [])]) is None
    assert find_disagreement(reference, []) is None
    found = find_disagreement(reference, [Probe(0, "some text", ids), Probe(3, "some text", [*ids, 5])])
    assert found is not None
    file, difference = found
    assert file == 3
    assert "some text" in difference


@pytest.mark.parametrize("num_lines", [1, 20, 2000])
def test_a_sample_parses_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_lines: int) -> None:
    """The windows of a small input overlap: each is parsed as far as its share of the sample, not whole."""
    path = write_lines(tmp_path / "a.jsonl", ({"text": f"document {number} " * 5} for number in range(num_lines)))
    inputs, sizes = describe_inputs([place_of(path)]), list[int]()
    lines = path.read_bytes().splitlines(keepends=True)

    class Counting:
        def __init__(self, selection: Selection) -> None:
            self.reader = make_reader(selection)

        def read(self, block: bytes) -> Texts:
            sizes.append(len(block))
            return self.reader.read(block)

    monkeypatch.setattr(engine_choice, "make_reader", Counting)
    sample_bytes = 1 << 15
    texts = engine_choice.sample_texts(inputs, Selection(), sample_bytes)
    assert 0 < sum(map(len, texts)) <= sample_bytes
    assert sum(sizes) <= 2 * (sample_bytes + 64 * max(map(len, lines)))
