"""Engines that encode text: gigatoken, which is fast, and the tokenizer's own library, which is the reference.

gigatoken's `encode` ignores post-processors, so their tokens are added here. Every run compares both engines on text of
the input, on unusual texts, and around added tokens.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from penstock._limits import require_memory_to_encode
from penstock._optional import require
from penstock.errors import ConfigError, PenstockError, PrepareError
from penstock.prepare.tokens.model_files import (
    GIGATOKEN_NAMES,
    gigatoken_json,
    is_rank_file,
    load_encoding,
    load_sentencepiece,
    sentencepiece_spec,
    tiktoken_spec,
)
from penstock.prepare.tokens.tokenizer import TokenizerSpec, list_added_tokens, load_spec, no_panics, read_config
from penstock.store.base import Store
from penstock.store.hub_cache import located
from penstock.store.place import Place, absolute, local_path
from penstock.types import IntArray

EngineName = Literal["gigatoken", "tokenizers", "sentencepiece", "tiktoken"]

Encoded = tuple[NDArray[np.uint32], IntArray]
"""`(ids, lengths)`: uint32[n] of all texts one after another, int64[k] ids of each."""

ODD_TEXTS = (
    *("", " ", "a", " lead", "trail ", "  double  spaces  ", "\n\n\n", "\t\ta\r\nb\rc", " \n "),
    *("x\u00a0y\u2003z\u3000w", "don't we've I'LL you'Re 'tis", "camelCase snake_case kebab-case"),
    *("3.14 1,000,000 12345678901234567890 ١٢٣ ½²", "()[]{}!!!???...", "http://a.b/c?d=e&f#g"),
    *("e\u0301 \u00e9 ﬁ ß İ ǅ", "日本語テキスト。中文 한국어 가각", "नमस्ते ไทย עברית العربية"),
    *("😀👨\u200d👩\u200d👧🏽 ❤\ufe0f", "\u0000a\u0001b\u007f", "\ufeffbom\u200b\u2028\u2029"),
    *("\U0010ffff\uffff\ud7ff\ue000", "a" * 3000, " " * 300, "\n" * 60 + "x", "ab" * 500 + "!" * 200, "0" * 100),
)
"""Texts on which tokenizers often differ."""

EngineChoice = Literal["auto", "gigatoken", "tokenizers"]

_TOKENIZERS_BYTES, _GIGATOKEN_BYTES = 256, 32
"""Memory per byte of text: 212 and 26 were measured, with a token per byte. Both libraries abort without memory."""

_ADDED_TOKENS = 256
_ONE_BY_ONE_TEXTS = 50_000
"""From this many texts on, batches are worth the import of awkward, whose arrays gigatoken returns."""


class UnencodableError(PrepareError):
    """The tokenizer has no token for a part of a text, and none for unknown text."""


class Engine(Protocol):
    """Encodes UTF-8 texts as the tokenizer's own library does."""

    def encode(self, texts: Sequence[bytes]) -> Encoded: ...


class Reference(Engine, Protocol):
    def added_tokens(self) -> list[str]: ...

    def id_of(self, token: str) -> int | None:
        """Return the id of a token; None if it doesn't exist."""
        ...


@dataclass(frozen=True, slots=True)
class Difference:
    text: str
    found: list[int]
    expected: list[int]

    def __str__(self) -> str:
        place = next(
            (i for i, pair in enumerate(zip(self.found, self.expected, strict=False)) if pair[0] != pair[1]),
            min(len(self.found), len(self.expected)),
        )
        start = max(0, place - 2)
        return (
            f"at token {place} of {self.text[:60]!r}: "
            f"{self.found[start : place + 4]} instead of {self.expected[start : place + 4]}"
        )


class TokenizersEngine:
    """The `tokenizers` package; `tokenizer` is a `tokenizers.Tokenizer` that is loaded already."""

    def __init__(self, spec: TokenizerSpec, tokenizer: Any = None) -> None:
        self._tokenizer = spec.load() if tokenizer is None else tokenizer
        self._special_tokens = spec.special_tokens
        self._path = spec.path

    def added_tokens(self) -> list[str]:
        return list_added_tokens(self._tokenizer)

    def id_of(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        require_memory_to_encode(sum(map(len, texts)), _TOKENIZERS_BYTES)
        with _typed_errors(self._path):
            encode = self._tokenizer.encode_batch_fast
            found = encode([text.decode() for text in texts], add_special_tokens=self._special_tokens)
        return _joined([one.ids for one in found])

    def encode_with_offsets(self, texts: Sequence[bytes]) -> tuple[Encoded, list[IntArray]]:
        """Return ids, and int64[n, 2] for each text: the characters `[first, last + 1)` of each token."""
        require_memory_to_encode(sum(map(len, texts)), _TOKENIZERS_BYTES)
        with _typed_errors(self._path):
            found = self._tokenizer.encode_batch([text.decode() for text in texts], add_special_tokens=False)
        return _joined([one.ids for one in found]), [np.array(one.offsets, np.int64).reshape(-1, 2) for one in found]


@contextlib.contextmanager
def _typed_errors(path: str) -> Generator[None]:
    """Name the tokenizer in errors of its library about a text."""
    try:
        with no_panics("this tokenizer fails on some text", path):
            yield
    except PenstockError:
        raise
    except Exception as error:  # the library has no class of its own for it
        what, hint = "the tokenizer can't encode some text", "Add a token for unknown text to it, or use another"
        found = str(error).partition("\n")[0]
        raise UnencodableError(what, path=path, found=found, hint=f"{hint} tokenizer") from error


class SentencePieceEngine:
    def __init__(self, spec: TokenizerSpec) -> None:
        self._processor = load_sentencepiece(spec)

    def added_tokens(self) -> list[str]:
        """Return control and unknown pieces: parts of a text may look like them."""
        one = self._processor
        return [
            one.IdToPiece(token)
            for token in range(one.GetPieceSize())
            if not one.IsByte(token) and (one.IsControl(token) or one.IsUnknown(token))
        ]

    def id_of(self, token: str) -> int | None:
        found = int(self._processor.PieceToId(token))
        return found if self._processor.IdToPiece(found) == token else None

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        return _joined(self._processor.Encode([text.decode() for text in texts], out_type=int, num_threads=1))


class TiktokenEngine:
    """The `tiktoken` package. Special tokens in a text are plain text, and only EOS is known by name."""

    def __init__(self, spec: TokenizerSpec) -> None:
        self._spec = spec
        self._encoding = load_encoding(spec)

    def added_tokens(self) -> list[str]:
        return [] if self._spec.eos is None else [self._spec.eos]

    def id_of(self, token: str) -> int | None:
        return self._spec.eos_id if token == self._spec.eos else None

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        return _joined([self._encoding.encode_ordinary(text.decode()) for text in texts])


def encode_each(engine: Engine, texts: Sequence[bytes]) -> tuple[Encoded, dict[int, str]]:
    """Return the ids of texts, and for the indices of texts without ids the reason."""
    try:
        return engine.encode(texts), {}
    except UnencodableError:
        pass
    found: list[Sequence[int]] = []
    faults: dict[int, str] = {}
    for index, text in enumerate(texts):
        try:
            found.append(engine.encode([text])[0].tolist())
        except UnencodableError as error:
            found.append([])
            faults[index] = fault_of(error)
    return _joined(found), faults


def fault_of(error: UnencodableError) -> str:
    return f"the tokenizer {error.path} can't encode the text: {error.found}"


def _joined(found: Sequence[Sequence[int]]) -> Encoded:
    lengths = np.fromiter(map(len, found), np.int64, len(found))
    ids = np.empty(int(lengths.sum()), np.uint32)
    place = 0
    for one in found:
        ids[place : place + len(one)] = one
        place += len(one)
    return ids, lengths


def make_reference(spec: TokenizerSpec, tokenizer: Any = None) -> Reference:
    if spec.kind == "sentencepiece":
        return SentencePieceEngine(spec)
    return TiktokenEngine(spec) if spec.kind == "tiktoken" else TokenizersEngine(spec, tokenizer)


class GigatokenEngine:
    def __init__(self, spec: TokenizerSpec) -> None:
        if spec.kind == "tokenizers" and spec.split_special_tokens:
            raise ValueError("special tokens in text must be split, which gigatoken doesn't support")
        if spec.around is None:
            raise ValueError("its post-processor does more than add tokens around the text")
        self._around = spec.around
        self._encoded_texts = 0
        make = require("gigatoken", extra="tokenize").Tokenizer
        if spec.kind == "tiktoken":
            name = spec.pretokenizer or ""
            options = {"pretokenizer": GIGATOKEN_NAMES.get(name, name), "special_tokens": {}}
            self._tokenizer = make.from_tiktoken(spec.path, **options)
        else:
            data = gigatoken_json(spec.json) if spec.kind == "sentencepiece" else spec.json
            self._tokenizer = make.from_json(data)

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        if not texts:
            return np.empty(0, np.uint32), np.empty(0, np.int64)
        require_memory_to_encode(sum(map(len, texts)), _GIGATOKEN_BYTES)
        self._encoded_texts += len(texts)
        encode = self._batch if self._encoded_texts > _ONE_BY_ONE_TEXTS else self._one_by_one
        return _put_around(*encode(texts), *self._around)

    def _one_by_one(self, texts: Sequence[bytes]) -> Encoded:
        encode = self._tokenizer.encode
        found = [encode(text) for text in texts]
        ids = found[0] if len(found) == 1 else np.concatenate(found)  # one long document is not copied
        return ids, np.fromiter(map(len, found), np.int64, len(found))

    def _batch(self, texts: Sequence[bytes]) -> Encoded:
        layout = self._tokenizer.encode_batch(list(texts), parallel=False).layout
        offsets = np.asarray(layout.offsets.data, np.int64)
        return np.asarray(layout.content.data, np.uint32)[offsets[0] : offsets[-1]], np.diff(offsets)


def _put_around(ids: NDArray[np.uint32], lengths: IntArray, prefix: Sequence[int], suffix: Sequence[int]) -> Encoded:
    """Add `prefix` before and `suffix` after each text."""
    if not prefix and not suffix:
        return ids, lengths
    stops = np.cumsum(lengths)
    places = np.stack([stops - lengths] * len(prefix) + [stops] * len(suffix), axis=1).reshape(-1)
    return np.insert(ids, places, np.tile([*prefix, *suffix], len(lengths))), lengths + len(prefix) + len(suffix)


@functools.lru_cache(maxsize=2)
def load_engine(name: EngineName, spec: TokenizerSpec) -> Engine:
    return GigatokenEngine(spec) if name == "gigatoken" else make_reference(spec)


def load_reference(spec: TokenizerSpec) -> Reference:
    """Return the tokenizer's own library, which is loaded once in each process."""
    return cast(Reference, load_engine(spec.kind, spec))


def try_gigatoken(spec: TokenizerSpec, texts: Sequence[bytes]) -> Encoded | str:
    """Encode texts with gigatoken; return the reason if it can't."""
    try:
        return load_engine("gigatoken", spec).encode(texts)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in Rust isn't an Exception
        return f"{type(error).__name__}: {error}".partition("\n")[0]


def odd_texts(added_tokens: Sequence[str]) -> list[bytes]:
    """Return texts to compare that the input may lack: rare characters, and added tokens in several contexts."""
    around = ("{}", "x{}y", " {} ", "x {}\n{}{} y")
    texts = [*ODD_TEXTS, *(form.replace("{}", token) for token in added_tokens[:_ADDED_TOKENS] for form in around)]
    return [text.encode(errors="replace") for text in texts]


def find_difference(texts: Sequence[bytes], found: Encoded, expected: Encoded) -> Difference | None:
    if np.array_equal(found[1], expected[1]) and np.array_equal(found[0], expected[0]):
        return None
    both = (np.split(ids, np.cumsum(lengths)[:-1]) for ids, lengths in (found, expected))
    for text, one, other in zip(texts, *both, strict=True):
        if not np.array_equal(one, other):
            return Difference(text.decode(), one.tolist(), other.tolist())
    return None


_MODELS = ("tokenizer.model", "sentencepiece.model", "spiece.model", "tokenizer.tiktoken")
_SUFFIXES = (".model", ".tiktoken")
_IN_FOLDERS = (*_SUFFIXES, ".json", ".jinja", ".txt", ".py")


def load_tokenizer(
    given: str | os.PathLike[str],
    store: Store,
    *,
    eos: str | None = None,
    special_tokens: bool = True,
    pretokenizer: str | None = None,
) -> tuple[TokenizerSpec, Reference]:
    """Load the tokenizer at a path, whose content decides its kind, and its own library.

    Args:
        given: a file; a directory with a `tokenizer.json`, a `.model` or a `.tiktoken` file; or a name in the Hub's
            local cache.
        store: its store.
        eos: token that ends a document, or `NO_EOS`; by default the tokenizer's own.
        special_tokens: a post-processor adds its special tokens.
        pretokenizer: how the text of a tiktoken file is split; see `PATTERNS`.
    """
    named, given = os.fspath(given), located(os.fspath(given))
    if given != named:
        how: dict[str, Any] = {"eos": eos, "special_tokens": special_tokens, "pretokenizer": pretokenizer}
        spec, reference = load_tokenizer(given, store, **how)
        return replace(spec, name=named.rpartition("/")[2]), reference
    path = absolute(local_path(given, "a tokenizer"))
    file = _model_in(store, path) if store.is_folder(path) else path
    data = store.get(file) if file is not None else b"{"
    is_ranks = is_rank_file(data)
    if pretokenizer is not None and not is_ranks:
        raise ConfigError("a pretokenizer only applies to tiktoken files", path=path, found=pretokenizer)
    # A damaged file of another name is read as tokenizer.json, for its error.
    if file is None or data.lstrip()[:1] == b"{" or not (file.endswith(_SUFFIXES) or is_ranks):
        spec, tokenizer = load_spec(given, store, eos=eos, special_tokens=special_tokens)
        return spec, make_reference(spec, tokenizer)
    if is_ranks:
        config = read_config(Place(store, file).folder().child("tokenizer_config.json"))
        spec = tiktoken_spec(data, file, eos=eos, pretokenizer=pretokenizer, config=config)
    else:
        spec = sentencepiece_spec(data, file, eos=eos)
    return spec, make_reference(spec)


def tokenizer_files(given: str | os.PathLike[str]) -> list[str]:
    """Return the tokenizer's file, or those of its directory, without other files there such as an output."""
    named = located(os.fspath(given))
    if not os.path.isdir(named):
        return [named]
    return [os.path.join(named, name) for name in os.listdir(named) if name.endswith(_IN_FOLDERS)]


def _model_in(store: Store, folder: str) -> str | None:
    if store.exists(os.path.join(folder, "tokenizer.json")):
        return None
    for name in _MODELS:
        if store.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    found = sorted(name for name in os.listdir(folder) if name.endswith(_SUFFIXES))
    return os.path.join(folder, found[0]) if len(found) == 1 else None
