"""A `tokenizer.json` of anybody's, before a library sees it, and what its panics become.

The libraries are written in Rust: an id of 4294967295 makes one ask for hundreds of GB, which ends the whole process,
and a wrong template ends in a `PanicException`, which is no `Exception`. So ids are looked at first, then the file is
loaded once in a process of its own, and panics are errors with a type.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import xxhash

from penstock._limits import MOST_TOKEN_ID, MOST_TOKENIZER_BYTES
from penstock._optional import require
from penstock.errors import Corrupt, TooLarge

_HINT = "Use a tokenizer.json written by the tokenizers package, or a Hugging Face folder"
_PROBE_S = 300
_PROBE_BYTES, _PROBE_FACTOR = 8 << 30, 64
_GROWS = 3
_PROBE = """
import resource, sys
data = sys.stdin.buffer.read()
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
given = resource.getrlimit(resource.RLIMIT_AS)[1]
most = int(sys.argv[1]) if given == resource.RLIM_INFINITY else min(given, int(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_AS, (most, most))
def patterns(value):
    for one in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from patterns(one)
    if isinstance(value, dict) and isinstance(value.get("String"), str):
        yield value["String"]
def by_tokenizers():
    import json, os, tokenizers
    made = tokenizers.Tokenizer.from_buffer(data)
    made.no_truncation()
    made.no_padding()
    made.get_vocab(True), made.decode([0]), made.to_str()
    known = json.loads(data)
    for text in "a b", "".join(map(chr, range(9, 127))), *list(patterns(known.get("normalizer")))[:1000]:
        normal = made.normalizer.normalize_str(text) if made.normalizer else text
        if max(len(normal), len(made.encode(text).ids) // 4) > 64 * len(text.encode()) + 4096:
            os._exit(int(sys.argv[2]))
def by_gigatoken():
    import gigatoken
    gigatoken.Tokenizer.from_json(data).encode(b"a b")
for probe in by_tokenizers, by_gigatoken:
    try:
        probe()
    except BaseException:
        pass
"""


def parse_tokenizer(data: bytes, path: str) -> Any:
    """A `tokenizers.Tokenizer`; see `require_loadable`.

    Raises:
        Corrupt: it is none.
        MissingExtra: `tokenizers` is not installed.
    """
    tokenizers = require("tokenizers", extra="tokenize")
    with no_panics("not a valid tokenizer.json", path):
        try:
            return tokenizers.Tokenizer.from_buffer(data)
        except Exception as error:  # the package raises the base class
            raise Corrupt("not a valid tokenizer.json", path=path, found=str(error), hint=_HINT) from error


def tokenizer_digest(data: bytes, *, split_special_tokens: bool = False) -> str:
    """What a side file says of the tokenizer that made its tokens: of its file, and of a setting that is not in it."""
    return xxhash.xxh3_128_hexdigest(data + b"\0split" * split_special_tokens)


def require_loadable(data: bytes, path: str) -> None:
    """Refuse a file that would end the process which loads it. It is loaded in another one, once for equal files.

    Raises:
        TooLarge: an id beyond `MOST_TOKEN_ID`, or more than `MOST_TOKENIZER_BYTES`.
        Corrupt: it ends that process, takes more than `_PROBE_S` seconds or 8 GiB, or makes of a short text one that
            is more than 64 times as long.
    """
    if len(data) > MOST_TOKENIZER_BYTES:
        raise TooLarge(
            "the tokenizer is too large", path=path, found=f"{len(data)} bytes", expected=str(MOST_TOKENIZER_BYTES)
        )
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # which its library says better
    for token_id in _ids(value):
        if token_id > MOST_TOKEN_ID:
            raise TooLarge(
                "an id that can't be in a vocabulary", path=path, found=token_id, expected=f"{MOST_TOKEN_ID:,}"
            )
    fate = _fate(_File(xxhash.xxh3_128_hexdigest(data), data))
    if fate is not None:
        raise Corrupt("this tokenizer.json crashes the process that uses it", path=path, found=fate, hint=_HINT)


@contextlib.contextmanager
def no_panics(what: str, path: str) -> Generator[None]:
    """A panic of Rust, which is no `Exception`, becomes `Corrupt`."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise Corrupt(what, path=path, found=f"{type(error).__name__}: {error}".partition("\n")[0]) from None


def _ids(value: Any) -> Iterator[int]:
    """The largest ids of a vocabulary, and all ids of tokens that are added or put around texts."""
    if not isinstance(value, dict):
        return
    model: Any = value.get("model")
    vocab: Any = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):
        yield max((one for one in vocab.values() if isinstance(one, int)), default=0)
    for added in _items(value.get("added_tokens")):
        if isinstance(added, dict) and isinstance(added.get("id"), int):
            yield added["id"]
    yield from _integers(value.get("post_processor"))


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _integers(value: Any) -> Iterator[int]:
    left: list[Any] = [value]
    while left:
        one: Any = left.pop()
        if isinstance(one, int):
            yield one
        elif isinstance(one, list):
            left += one
        elif isinstance(one, Mapping):
            left += one.values()


@dataclass(frozen=True, slots=True)
class _File:
    digest: str
    data: bytes = field(repr=False, compare=False)


@functools.lru_cache(maxsize=4)
def _fate(file: _File) -> str | None:
    """How a process ends that loads a tokenizer; None where it lives."""
    if not sys.executable:
        return None
    most_bytes = _PROBE_BYTES + _PROBE_FACTOR * len(file.data)
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, str(most_bytes), str(_GROWS)],
            input=file.data, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=_PROBE_S, env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not finished after {_PROBE_S} s"
    except OSError:
        return None  # no other process can be had: the ids were looked at
    if done.returncode == _GROWS:
        return "text that grows by more than 64 times"
    return f"signal {-done.returncode}" if done.returncode < 0 else None
