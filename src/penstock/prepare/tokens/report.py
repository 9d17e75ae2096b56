"""Reports of a preparation: its progress, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock._secrets import redacted_repr
from penstock.types import Manifest


@dataclass(frozen=True, slots=True)
class Dropped:
    """Line that was skipped.

    Attributes:
        file: relative path of the input.
        line: number of the line, from 1.
        reason: why it was skipped.

    Examples:
        >>> import penstock as ps
        >>> with open("docs.jsonl", "a") as file:
        ...     print("not JSON", file=file)
        >>> options = {"tokenizer": "tokenizer.json", "eos": "<|endoftext|>", "executor": "inline"}
        >>> report = ps.pack("docs.jsonl", "docs.pbin", on_error="skip", **options)
        >>> [(dropped.file, dropped.line) for dropped in report.dropped]
        [('docs.jsonl', 7)]
    """

    file: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class PackProgress:
    """Progress of `pack`.

    Attributes:
        documents: number of documents so far.
        tokens: number of tokens so far.
        input_bytes: input bytes read so far; an estimate for compressed inputs.
        total_bytes: bytes of the inputs, or of this part's share of them.

    Examples:
        >>> import penstock as ps
        >>> def show(progress):
        ...     print(f"{100 * progress.input_bytes / progress.total_bytes:.0f}%, {progress.documents} documents")
        >>> options = {"tokenizer": "tokenizer.json", "eos": "<|endoftext|>", "executor": "inline"}
        >>> report = ps.pack("docs.jsonl", "docs.pbin", progress=show, **options)
        100%, 6 documents
    """

    documents: int
    tokens: int
    input_bytes: int
    total_bytes: int


@redacted_repr
@dataclass(frozen=True, slots=True)
class PackReport:
    """Result of `pack`.

    Attributes:
        output: path of the dataset.
        documents: number of documents in it.
        tokens: number of tokens in it, including EOS tokens; None if it was already complete and its format doesn't
            record the number.
        input_files: number of files read.
        input_bytes: their size, or the size of this part's share of them.
        num_dropped: number of lines skipped; `dropped` contains the first 100.
        engine: engine that encoded the text; `engine_note` is the reason why it wasn't gigatoken.
        tasks: number of tasks; `reused_tasks` of them had been finished by an earlier run.
        seconds: stage → seconds.
        manifest: content of the side file; None if nothing was committed.
        part: `(i, n)` if this was part i of a distributed job; counts are then those of the part.
        missing: parts that are missing, if the output couldn't be committed for that reason.
        excluded: lines skipped because of the inputs' exclude lists.
        num_unmasked: conversations whose loss mask is 0 everywhere; `unmasked` contains the first 5.
        num_endless: conversations whose last answer doesn't end with a trained token, so that a model doesn't learn to
            stop; `endless` contains the first 5.
        null_fields: nested fields of conversations, such as `messages[].tool_calls[].id`, that were null in some table
            rows and dropped there.
        unknown_tokens: number of tokens for text that the tokenizer doesn't know: all if the output is finished, else
            those encoded by this run.
        dropped_characters: number of characters for which the tokenizer has no token; counted in the same way.
        eos: token that ends documents; None if none was appended.
        was_complete: an interrupted earlier run had already finished the output.

    Examples:
        >>> import penstock as ps
        >>> report = ps.pack(
        ...     "docs.jsonl", "docs.pbin", tokenizer="tokenizer.json", eos="<|endoftext|>", executor="inline"
        ... )
        >>> report.documents, report.num_dropped, report.was_complete
        (6, 0, False)
        >>> report.manifest.num_samples
        6
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
