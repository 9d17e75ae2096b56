"""A text for which there is no memory is an error of Python: the reader of JSON ends the process there."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.internals import (
    DecodeOptions,
    GigatokenEngine,
    TokenizersEngine,
    decode_line,
    decode_part,
    load_tokenizer,
    require_memory_for,
)
from tests.internals import decoder as _decoder  # pyright: ignore[reportPrivateUsage]
from tests.internals import extractor as _extractor  # pyright: ignore[reportPrivateUsage]
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from penstock.store import LocalStore

LINE = b'{"text":"' + b"a" * (100 << 20) + b'"}'
WAYS: dict[str, Callable[[bytes], Any]] = {
    "a line": decode_line,
    "a part of a sample": lambda line: decode_part("json", line, DecodeOptions()),
    "a field to pack": lambda line: _extractor((("text",),), "")(line),
    "a field of a list": lambda line: _extractor((("text", 0),), "")(line),
    "a line of a shard": lambda line: _decoder(None)(memoryview(line), 0, len(line)),
}


def ended(work: Callable[[], object], spare_bytes: int) -> int:
    """How a child that does it ends, with so much memory beside what it has."""
    child = os.fork()
    if child == 0:
        used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used_bytes + spare_bytes,) * 2)
        try:
            work()
        except MemoryError:
            os._exit(7)
        except BaseException:
            os._exit(8)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("way", list(WAYS))
def test_no_memory_for_a_text_is_an_error(way: str) -> None:
    assert ended(lambda: WAYS[way](LINE), 20 << 20) == 7


@pytest.mark.parametrize("kind", [TokenizersEngine, GigatokenEngine])
def test_no_memory_for_the_tokens_of_a_text_is_an_error(kind: type[Any], tmp_path: Path) -> None:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    symbols = ["</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made.train_from_iterator(["ab"], trainers.BpeTrainer(initial_alphabet=symbols[1:], special_tokens=symbols[:1]))
    made.save(str(tmp_path / "tokenizer.json"))
    spec, _ = load_tokenizer(tmp_path / "tokenizer.json", LocalStore(), eos="</s>")
    engine, text = kind(spec), b"a" * (4 << 20)
    assert ended(lambda: engine.encode([text]), 64 << 20) == 7


def test_what_fits_is_read() -> None:
    assert ended(lambda: decode_line(LINE), 400 << 20) == 0
    require_memory_for(b"{}" * (1 << 20))
