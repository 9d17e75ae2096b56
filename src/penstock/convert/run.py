"""The conversion itself: copy, publish, read back, compare."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from penstock._keywords import Converting
from penstock._secrets import redacted_repr
from penstock.abc import Source
from penstock.convert.asked import Asked, understand
from penstock.convert.columns import Missing
from penstock.convert.documents import verify_tokens, write_tokens
from penstock.convert.groups import SampleJob
from penstock.convert.output import Advance, ReadBack, Written
from penstock.convert.parts import TokenJob
from penstock.convert.plan import TokenPlan, plan_tokens
from penstock.convert.plan_samples import SamplePlan, plan_samples
from penstock.convert.rehearsal import rehearse
from penstock.convert.samples import verify_samples, write_samples
from penstock.engine.options import RunOptions
from penstock.executors import AnyExecutor
from penstock.formats import files_at, get_format
from penstock.formats._excluded import put_waiting, settle_waiting, waiting_list
from penstock.store._keeping import keeping_nothing
from penstock.store.outputs import claimed
from penstock.store.place import Place, dataset_at, is_data, place_of
from penstock.store.unfinished import FAILED, Replaced, keeping, restoring
from penstock.types import Sample


@redacted_repr
@dataclass(frozen=True, slots=True)
class ConvertReport:
    """Result of `convert`.

    Attributes:
        to: format of the target.
        samples: number of documents, lines or samples in it.
        tokens: number of tokens in it; None for other data.
        token_bytes: width of its token ids in bytes.
        size_bytes: bytes of its data.
        eos: what was done with EOS tokens, such as `"keep"` or `"strip 0"`.
        lost: properties of the source that the target can't store.
        kept_bytes: bytes that an interrupted run had already written.
        digest: digest of the documents or samples, equal for source and target.
        copy_seconds: time to read, write and publish.
        verify_seconds: time to read the target back.
        groups: number of pieces written by several processes; None if one writer wrote everything.
        reused_groups: pieces that an interrupted run or other hosts had finished.
        part: `(i, n)` if this was part i of a distributed job; `samples` and `groups` are then those of the part.
        missing: parts that aren't done, with `no_work`; nothing was committed then.
        was_complete: the target was already complete.
        excluded: samples of the source skipped because of its exclude list.
        skipped: samples that lack a column, with `missing="skip"`.
        field_map: for tars, column of images → its parts in a `field_map` of `dataset.yaml`.

    Examples:
        >>> import penstock as ps
        >>> report = ps.convert("corpus.pbin", "corpus.bin", to="megatron")
        >>> report.samples, report.tokens, report.token_bytes, report.eos
        (6, 45, 2, 'keep')
    """

    to: str
    samples: int
    tokens: int | None
    token_bytes: int | None
    size_bytes: int
    eos: str
    lost: tuple[str, ...]
    kept_bytes: int
    digest: str | None
    copy_seconds: float
    verify_seconds: float
    groups: int | None = None
    reused_groups: int = 0
    part: tuple[int, int] | None = None
    missing: tuple[int, ...] = ()
    was_complete: bool = False
    excluded: int = 0
    skipped: int = 0
    field_map: Mapping[str, str] = field(default_factory=dict[str, str])


def convert(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Source[Sample] | Iterable[Sample],
    target: str | os.PathLike[str],
    *,
    to: str | None = None,
    format: str | None = None,
    eos: Sequence[Any] | None = None,
    columns: Mapping[str, str] | Sequence[str] | None = None,
    workers: int | None = None,
    executor: AnyExecutor = "processes",
    group_rows: int | None = None,
    overwrite: bool = False,
    keep_excluded: bool = False,
    missing: Missing = "error",
    file_tokens: int | None = None,
    dry_run: bool = False,
    part: tuple[int, int] | None = None,
    finish: bool = False,
    no_work: bool = False,
    restart: bool = False,
    progress: Advance | None = None,
    **options: Unpack[Converting],
) -> ConvertReport:
    """Write the samples of `source` as a new dataset in another format, and read it back to check it.

    If interrupted, repeat the call to resume. Token ids keep the source's width; from formats with one fixed width,
    they get the width recorded for the original data, else the smallest width that fits. Several processes can write
    shards; the bytes written depend only on the source and the options.

    Args:
        source: a dataset or a list of its files; CSV or TSV files with a header; a source; or an iterable of dicts,
            which is read once.
        target: path of the dataset to write.
        to, format: formats of the target and the source. By default that of the target's suffix; the source's format is
            detected.
        eos: `("add", id)` appends an EOS token to every document, `("strip", id)` removes it. By default documents are
            unchanged.
        columns: columns of the target: name → encoding (tars and directories: part), or names. By default all columns,
            from the schema or 1000 samples.
        workers: number of processes that write; by default one per core for shards, this process for other formats.
        executor: name of an executor (see `penstock.executors`), or an executor.
        group_rows: samples that a process writes as one group. By default four shards' worth, estimated from the first
            samples.
        overwrite, dry_run: replace an existing target; check everything and report what would be written, without
            writing.
        keep_excluded: also copy excluded samples, with their entries.
        missing: for samples that lack a column the target requires: `"error"`; `"skip"` leaves out and counts every
            sample that lacks a column; `"null"` writes null if the target supports it.
        file_tokens: write a directory of token files of this many tokens.
        part: `(i, n)`: do part i (from 0) of n parts of a distributed job.
        finish, no_work, restart: finalize a distributed job, doing the missing work; only commit if nothing is missing;
            discard existing work.
        progress: called with the number of samples done and a text.
        options: `layout, eos_id, flavor, raw, trust, follow_links, read, excludes, source_split, source_separator,
            source_encoding, tokens_column, tokens_dtype, one_document, documents` for the source, as in
            `penstock.open`; `prefix_keys` puts the shard's name before each key of tars. All others are options of the
            target, as in `penstock.create`: `token_bytes=`, `size_limit=`. If the target has no splits, `split=`
            applies to the source.

    Returns:
        A report with `samples`, `tokens`, `size_bytes`, `digest`, `lost` and more.

    Raises:
        Unsupported: the target's format can't store these samples; the message says why.
        ConfigError: the target exists, an option is invalid, or unfinished work has other options.
        PrepareError, TooLarge: another run writes the target; a token id doesn't fit.
        Corrupt: reading back gave other samples than were written. The output is removed, and a replaced dataset
            restored.

    Examples:
        >>> import penstock as ps
        >>> report = ps.convert("docs.jsonl", "docs-mds", to="mds", workers=1)
        >>> report.samples
        6
        >>> ps.open("docs-mds")[0]["id"]
        'a1'
        >>> report = ps.convert("corpus.pbin", "corpus.bin", to="megatron")
        >>> ps.diff("corpus.pbin", "corpus.bin").equal
        True
    """
    follow = bool(options.get("follow_links"))
    place: Any = dataset_at(source, follow_links=follow) if is_data(source) else source
    how = RunOptions(
        executor, workers, part, finish, no_work, restart, dry_run, overwrite,
        keep_excluded=keep_excluded, progress=progress,
    )  # fmt: skip
    asked = understand(
        place, place_of(target), to=to, format=format, eos=eos, columns=columns, group_rows=group_rows,
        file_tokens=file_tokens, how=how, missing=missing, options=options,
    )  # fmt: skip
    with keeping_nothing(dry_run):
        return _rehearsed(asked) if dry_run else _convert(asked, progress or _ignore)


def _rehearsed(asked: Asked) -> ConvertReport:
    """What would be written: the first samples are, to a writer that keeps nothing."""
    plan = plan_tokens(asked) if asked.to.traits.tokens else plan_samples(asked)
    rehearse(asked, plan)
    if isinstance(plan, TokenPlan):
        samples, tokens = len(plan.source), plan.source.num_tokens
        width = int(plan.output.options.get("token_bytes") or plan.source.dtype.itemsize)
        found = ReadBack(samples, None, tokens * width, tokens)  # some formats have one width for all ids
    else:
        samples = 0 if plan.given.rows is None else len(plan.given.rows)
        found = ReadBack(samples, None, samples * plan.mean_bytes)
    now = time.monotonic()
    return _report(asked, plan, Written(None, None), found, (now, now))


def _convert(asked: Asked, advance: Advance) -> ConvertReport:
    plan = plan_tokens(asked) if asked.to.traits.tokens else plan_samples(asked)
    if isinstance(plan, SamplePlan) and plan.is_grouped:
        return _shared(asked, plan, advance)
    if isinstance(plan, TokenPlan) and plan.by_parts:
        return _shared(asked, plan, advance)
    with plan.output.held() as output, _replaced(plan) as replaced:
        started = time.monotonic()
        with _going_along(plan):
            if isinstance(plan, TokenPlan):
                written = write_tokens(plan, output, advance)
                copied = time.monotonic()
                with _verifying(plan, written, replaced):
                    found = verify_tokens(plan, output, written)
            else:
                written = write_samples(plan, output, advance)
                copied = time.monotonic()
                with _verifying(plan, written, replaced):
                    found = verify_samples(plan, output, written, advance)
        output.finish()
    return _report(asked, plan, written, found, (started, copied))


def _shared(asked: Asked, plan: TokenPlan | SamplePlan, advance: Advance) -> ConvertReport:
    """The same by many workers; where others share the work, each reads back what it wrote."""
    started = time.monotonic()
    copied: list[float] = []
    found: list[ReadBack] = []

    def verify(written: Written) -> None:
        copied.append(time.monotonic())
        if asked.how.is_distributed:
            return
        with _verifying(plan, written, replaced):
            if isinstance(plan, TokenPlan):
                found.append(verify_tokens(plan, plan.output, written))
            else:
                found.append(verify_samples(plan, plan.output, written, advance))
        _settle_list(plan)  # before the work is discarded: a killed run is recognised by it

    with contextlib.ExitStack() as stack:
        replaced = stack.enter_context(_replaced(plan))
        stack.enter_context(_going_along(plan))
        if isinstance(plan, TokenPlan):
            written = TokenJob.of(plan, verify).write_in_parts()
        else:
            place = plan.output.place
            if not asked.how.is_distributed:
                place = Place(stack.enter_context(claimed(place.store, place.path)), place.path)
            written = SampleJob.of(plan, place, verify).write_in_parts()
    found.append(_as_written(plan, written))
    return _report(asked, plan, written, found[0], (started, *copied, time.monotonic()))


def _replaced(plan: TokenPlan | SamplePlan) -> contextlib.AbstractContextManager[Replaced]:
    """What the output replaces, until the output is verified."""
    output = plan.output
    replaces = output.overwrite and not plan.how.is_distributed
    path = output.place.path if output.split is None else f"{output.place.path}/{output.split}"
    return keeping(output.place, files_at(output.dataset.format, path), replaces=replaces)


@contextlib.contextmanager
def _verifying(plan: TokenPlan | SamplePlan, written: Written, replaced: Replaced) -> Generator[None]:
    """Take the output back if the block, which verifies it, fails."""
    is_of_earlier_run = written.was_complete or written.manifest is None
    try:
        with restoring(replaced, drop=is_of_earlier_run):
            yield
    except FAILED:
        plan.output.finish()
        raise


def _settle_list(plan: TokenPlan | SamplePlan) -> None:
    """Put the exclude list next to the output, if one waits for it."""
    if plan.carried if isinstance(plan, TokenPlan) else plan.given.carried:
        dataset = plan.output.dataset
        settle_waiting(get_format(dataset.format), plan.output.place, dataset.options.split)


@contextlib.contextmanager
def _going_along(plan: TokenPlan | SamplePlan) -> Generator[None]:
    """Let the exclude list of what is copied although it is excluded wait until the block has made the data."""
    entries = plan.carried if isinstance(plan, TokenPlan) else plan.given.carried
    place, chosen = plan.output.place, get_format(plan.output.dataset.format)
    if not entries:
        yield
        return
    if not place.exists():  # else it is what this work has made, or an error follows
        put_waiting(chosen, place, entries)
    try:
        yield
        _settle_list(plan)
    except BaseException:
        if not place.exists():
            place.store.delete(waiting_list(chosen.name, place.path))
        raise


def _as_written(plan: TokenPlan | SamplePlan, written: Written) -> ReadBack:
    """What is known of an output that was not read back."""
    known = written.manifest
    if known is None:
        return ReadBack(written.samples or 0, written.digest, 0)
    width = (plan.token_bytes or plan.source.dtype.itemsize) if isinstance(plan, TokenPlan) else None
    return ReadBack(written.samples or 0, written.digest, known.size_bytes, known.num_tokens, width)


def _report(
    asked: Asked, plan: TokenPlan | SamplePlan, written: Written, found: ReadBack, times: Sequence[float]
) -> ConvertReport:
    started, copied = times[:2]
    return ConvertReport(
        to=asked.to.name,
        samples=found.samples,
        tokens=found.tokens,
        token_bytes=found.token_bytes,
        size_bytes=found.size_bytes,
        eos=" ".join(str(word) for word in (asked.rule.action, asked.rule.eos_id) if word is not None),
        lost=plan.lost,
        kept_bytes=asked.kept.bytes,
        digest=found.digest,
        copy_seconds=copied - started,
        verify_seconds=time.monotonic() - copied,
        groups=written.groups,
        reused_groups=written.reused,
        part=asked.how.part,
        missing=written.missing,
        was_complete=written.was_complete,
        excluded=plan.excluded if isinstance(plan, TokenPlan) else plan.given.excluded,
        skipped=0 if isinstance(plan, TokenPlan) else plan.given.skipped,
        field_map=plan.field_map(found.parts) if isinstance(plan, SamplePlan) else {},
    )


def _ignore(done: int, text: str) -> None:
    """No progress asked for."""
