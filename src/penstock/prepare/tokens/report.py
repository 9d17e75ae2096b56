"""Reports of a preparation: its progress, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock._secrets import redacted_repr
from penstock.types import Manifest


@dataclass(frozen=True, slots=True)
class Dropped:
    """A line that was left out: the input's relative path, the line from 1, and why."""

    file: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class PackProgress:
    """How far `pack` is.

    Attributes:
        documents: so far.
        tokens: so far.
        input_bytes: bytes of the inputs read so far; for compressed ones an estimate.
        total_bytes: bytes of the inputs; of a share, of what is its own.
    """

    documents: int
    tokens: int
    input_bytes: int
    total_bytes: int


@redacted_repr
@dataclass(frozen=True, slots=True)
class PackReport:
    """What `pack` did.

    Attributes:
        output: where the dataset is.
        documents: in it.
        tokens: in it, EOS tokens included; None where it was complete already and its format does not count them.
        input_files: files read.
        input_bytes: their size; of a share, of what is its own.
        num_dropped: lines left out; `dropped` are the first 100.
        engine: what encoded; `engine_note` says why not gigatoken.
        tasks: pieces of work; `reused_tasks` of them an earlier run had finished.
        seconds: stage → seconds.
        manifest: the content of the side file; None where nothing was committed.
        part: `(i, n)`, where this was the i-th of n shares: counts are those of the share.
        missing: shares of the work that are missing, where the output could not be committed for that.
        excluded: lines that the exclude lists of the inputs left out.
        num_unmasked: conversations whose loss mask is 0 everywhere; `unmasked` are the first 5.
        num_endless: conversations in which no trained token ends the last answer: a model doesn't learn from them to
            stop; `endless` are the first 5.
        null_fields: fields of structs, such as `messages[].tool_calls[].id`, that were null in some rows of tables of
            conversations, and dropped there.
        unknown_tokens: tokens that stand for text that the tokenizer doesn't know; all of them if the output is
            finished, else those that this run encoded.
        dropped_characters: characters that the tokenizer dropped, as it has no token for them; the same.
        eos: the token that ends documents; None if none was appended.
        was_complete: an earlier run that was killed had finished the output: nothing was left to do but to sweep.
    """

    output: str
    documents: int
    tokens: int | None
    input_files: int
    input_bytes: int
    num_dropped: int
    dropped: tuple[Dropped, ...]
    engine: str
    engine_note: str | None
    tasks: int
    reused_tasks: int
    seconds: Mapping[str, float]
    manifest: Manifest | None = None
    part: tuple[int, int] | None = None
    missing: tuple[int, ...] = ()
    was_complete: bool = False
    excluded: int = 0
    num_unmasked: int = 0
    unmasked: tuple[Dropped, ...] = ()
    num_endless: int = 0
    endless: tuple[Dropped, ...] = ()
    null_fields: tuple[str, ...] = ()
    unknown_tokens: int = 0
    dropped_characters: int = 0
    eos: str | None = None
