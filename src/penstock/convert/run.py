"""The conversion itself: copy, publish, read back, compare."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._kinds import is_token_source
from penstock._secrets import redacted_repr
from penstock.abc import Source, Store, SupportsRuns, TokenSource, Writer
from penstock.codec.hashes import DocumentDigest
from penstock.convert.eos import EosRule
from penstock.convert.plan import Plan, make_plan, sides
from penstock.convert.plan_samples import Asked, plan_samples
from penstock.convert.samples import GROUPED, count_workers, finish, verify, write_at_once, write_in_groups
from penstock.errors import ConfigError, Corrupt, NotFound
from penstock.formats import files_at
from penstock.formats.tokens.common import document_runs
from penstock.store.local import Kept, LocalStore
from penstock.store.outputs import claimed, output_path, sweep_killed
from penstock.store.resolve import resolve
from penstock.store.unfinished import has_mark, remove_mark, set_mark
from penstock.types import IntArray, Manifest, Sample

RUN_TOKENS = 1 << 22

Advance = Callable[[int, str], None]


@redacted_repr
@dataclass(frozen=True, slots=True)
class ConvertReport:
    """What `convert` did.

    Attributes:
        to: format of the target.
        samples: documents, lines or samples in it.
        tokens: tokens in it; None for other data.
        token_bytes: width of the ids that it gives.
        size_bytes: bytes of its data.
        eos: what was done with EOS tokens, such as `"keep"` or `"strip 0"`.
        lost: what the source holds and the target has no place for.
        kept_bytes: found written already, by a run that was killed.
        digest: of the documents or the samples, the same on both sides.
        copy_seconds: reading, writing and publishing.
        verify_seconds: reading the target back.
        groups: pieces that samples were written in by many processes; None where one writer wrote all.
        reused_groups: of these, finished by a run that was killed.
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


def convert(
    source: str | os.PathLike[str] | Source[Sample] | Iterable[Sample],
    target: str | os.PathLike[str],
    *,
    to: str | None = None,
    format: str | None = None,
    eos: Sequence[Any] | None = None,
    columns: Mapping[str, str] | Sequence[str] | None = None,
    workers: int | None = None,
    executor: Literal["processes", "inline"] = "processes",
    group_rows: int | None = None,
    overwrite: bool = False,
    progress: Advance | None = None,
    **options: Any,
) -> ConvertReport:
    """Write the samples of `source` as a new dataset, and read it back.

    Killed and run again, it goes on. The width of the ids is the source's; from a format with one width for all it is
    the one that the source was made from, where that is known, else what the largest id needs. Shard formats are
    written by many processes; the bytes depend on source and options alone.

    Args:
        source: dataset to read; a `.csv` or `.tsv` file with a header; a source; or samples, as dicts, once.
        target: dataset to make.
        to: its format; found from the suffix of `target` where it is None.
        format: format of the source; found by sniffing where it is None.
        eos: `("add", id)` puts an EOS behind every document, `("strip", id)` takes it away; else documents are kept.
        columns: of the target: name → encoding (for tars and folders: the part), or names. By default all, with
            encodings that follow from the source's schema, or from its first 1000 samples.
        workers: processes that write samples; by default one a core.
        executor: `"processes"`, or `"inline"` for none.
        group_rows: samples that a process writes as a group; by default four shards' worth, by the first samples.
        overwrite: replace the target.
        progress: called with samples done and a text.
        options: `layout, eos_id, flavor, raw, trust, follow_links, read, source_split` of the source, as
            `penstock.open` takes them; all others are the target's, as `penstock.create` takes them, such as
            `token_bytes=`, `dtype=`, `size_limit=`, `compression=`, `hashes=` or `split=`. A target without
            splits leaves `split=` to the source.

    Raises:
        Unsupported: the target's format can't hold these samples; it says why.
        ConfigError: the target exists, options or the EOS rule make no sense.
        TooLarge: an id does not fit the target.
        Corrupt: what was written does not read back as what was read; the target must not be used.
    """
    chosen, of_source, of_target = sides(target, to, options)
    advance = progress or _ignore
    if chosen.traits.tokens:
        if not isinstance(source, str | os.PathLike):
            raise ConfigError(f"{chosen.name} is made from a dataset with a path", path=target, hint="Use create")
        if isinstance(columns, Mapping) or group_rows is not None:
            raise ConfigError("documents of tokens have no columns and no groups", path=source)
        return _convert_tokens(source, target, to, format, EosRule.of(eos), options, advance, overwrite=overwrite)
    if EosRule.of(eos).action != "keep":
        raise ConfigError("an EOS is added and stripped between token formats", path=target)
    asked = Asked(chosen.name, format, columns, group_rows, overwrite, of_source, of_target)
    return _convert_samples(source, target, asked, count_workers(workers), executor, advance)


def _convert_samples(
    source: Any, target: str | os.PathLike[str], asked: Asked, workers: int, executor: str, advance: Advance
) -> ConvertReport:
    store, named = resolve(target)
    path = output_path(store, named)
    with claimed(store, path) as held:
        return _convert_held(source, held, path, asked, workers, executor, advance)


def _convert_held(
    source: Any, store: Store, path: str, asked: Asked, workers: int, executor: str, advance: Advance
) -> ConvertReport:
    started = time.monotonic()
    given, what, lost = plan_samples(source, store, path, asked)
    kept = Kept()
    if asked.to in GROUPED and isinstance(store, LocalStore):
        written = write_in_groups(given, what, store, workers, executor, advance)
    else:
        written = write_at_once(given, what, advance)
    copied = time.monotonic()
    samples = verify(what, written, workers, executor, advance)
    if isinstance(store, LocalStore):
        finish(store, path)
    return ConvertReport(
        to=asked.to,
        samples=samples,
        tokens=None,
        token_bytes=None,
        size_bytes=_size_bytes(written.manifest),
        eos="keep",
        lost=lost,
        kept_bytes=kept.bytes,
        digest=written.digest,
        copy_seconds=copied - started,
        verify_seconds=time.monotonic() - copied,
        groups=written.groups,
        reused_groups=written.reused,
    )


def _convert_tokens(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    to: str | None,
    format: str | None,
    rule: EosRule,
    options: Mapping[str, Any],
    advance: Advance,
    *,
    overwrite: bool,
) -> ConvertReport:
    plan, store = make_plan(source, target, to, format, rule, options)
    kept = Kept()
    if isinstance(store, LocalStore):
        store = LocalStore(kept=kept)
    started = time.monotonic()
    split = plan.create_options.get("split")  # others may be written at the same time
    with claimed(store, f"{plan.target_path}.{split}" if split else plan.target_path) as held:
        manifest = _copy(plan, held, kept, advance, overwrite=overwrite)
        copied = time.monotonic()
        written = plan.format.open(held, plan.target_path, plan.open_options)
        digest = _verify(plan, written, manifest)
        remove_mark(held, plan.target_path)
    tokens = written if is_token_source(written) else None
    return ConvertReport(
        to=plan.format.name,
        samples=len(written),
        tokens=None if tokens is None else tokens.num_tokens,
        token_bytes=None if tokens is None else tokens.dtype.itemsize,
        size_bytes=_size_bytes(manifest or getattr(written, "manifest", None)),
        eos=" ".join(str(word) for word in (plan.rule.action, plan.rule.eos_id) if word is not None),
        lost=plan.lost,
        kept_bytes=kept.bytes,
        digest=digest,
        copy_seconds=copied - started,
        verify_seconds=time.monotonic() - copied,
    )


def token_digest(source: TokenSource, rule: EosRule | None = None, path: str = "") -> str:
    """The document digest of a token source after an EOS rule: 32 hex digits, the same in every format."""
    digest = DocumentDigest()
    for tokens, doc_lengths in _runs(source, rule or EosRule(), path):
        digest.update(tokens, doc_lengths)
    return digest.hexdigest()


def _copy(plan: Plan, store: Store, kept: Kept, advance: Advance, *, overwrite: bool) -> Manifest | None:
    """Make the target visible; None where a run that was killed had done so."""
    what = {"to": plan.format.name, "source": plan.source.fingerprint, "options": plan.create_options}
    what |= {"eos": [plan.rule.action, plan.rule.eos_id]}
    if not overwrite and has_mark(store, plan.target_path, what) and _is_visible(plan, store):
        sweep_killed(store, files_at(plan.format.name, plan.target_path))
        return None
    with plan.format.create(store, plan.target_path, plan.create_options, overwrite=overwrite) as writer:
        try:
            _fill(plan, writer, advance)
        except KeyboardInterrupt:
            kept.hold = True  # what is written stays, hidden, for the same command
            raise
        set_mark(store, plan.target_path, what)
        try:
            return writer.commit()
        except BaseException:
            remove_mark(store, plan.target_path)
            raise


def _verify(plan: Plan, written: Source[Sample], manifest: Manifest | None) -> str | None:
    """The digest of the documents on both sides."""
    if not is_token_source(written):
        return None
    expected = None if manifest is None else manifest.digest
    if expected is None:
        expected = token_digest(plan.source, plan.rule, plan.source_path)
    found = token_digest(written)
    if found != expected:
        raise Corrupt(
            "the converted dataset reads back differently", path=plan.target_path, found=found, expected=expected
        )
    return found


def _fill(plan: Plan, writer: Writer, advance: Advance) -> None:
    source, done = plan.source, 0
    for tokens, doc_lengths in _runs(source, plan.rule, plan.source_path):
        _write_run(writer, tokens, doc_lengths)
        done += len(doc_lengths)
        advance(done, f"of {len(source):,}")


def _runs(source: TokenSource, rule: EosRule, path: str) -> Iterator[tuple[NDArray[Any], IntArray]]:
    """Runs of documents after the rule."""
    done = 0
    for tokens, doc_lengths in document_runs(source, RUN_TOKENS):
        yield rule.apply(tokens, doc_lengths, done, path)
        done += len(doc_lengths)


def _write_run(writer: Writer, tokens: NDArray[Any], doc_lengths: IntArray) -> None:
    if isinstance(writer, SupportsRuns):
        writer.write_run(tokens, doc_lengths)
    else:
        writer.write_batch({"tokens": np.split(tokens, np.cumsum(doc_lengths)[:-1])})


def _is_visible(plan: Plan, store: Store) -> bool:
    try:
        plan.format.open(store, plan.target_path, plan.open_options)
    except NotFound:
        return False
    return True


def _size_bytes(manifest: Any) -> int:
    return manifest.size_bytes if isinstance(manifest, Manifest) else 0


def _ignore(done: int, text: str) -> None:
    """No progress asked for."""
