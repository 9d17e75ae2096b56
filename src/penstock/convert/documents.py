"""Documents of tokens written as another dataset, in runs, and read back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._kinds import is_token_source
from penstock._planes import Plane, planes_of
from penstock.abc import SupportsRuns, TokenSource, Writer
from penstock.codec.hashes import DocumentDigest
from penstock.codec.joined_digest import JoinedDigest, is_joinable
from penstock.convert.eos import EosRule
from penstock.convert.output import Advance, Output, ReadBack, Written
from penstock.convert.plan import TokenPlan
from penstock.errors import Corrupt
from penstock.formats._planed_writer import PlanedWriter
from penstock.formats._proof import DocumentsProof
from penstock.formats._token_column import ColumnTokens
from penstock.formats.tokens.common import document_runs
from penstock.store.place import Place
from penstock.types import IntArray, Manifest

RUN_TOKENS = 1 << 22


def token_digest(source: TokenSource, rule: EosRule | None = None, path: str = "") -> str:
    """Return the document digest of a token source, which is the same in every format.

    Args:
        source: token source.
        rule: EOS rule to apply first.
        path: name of the source in errors.

    Returns:
        32 hex digits.

    Examples:
        >>> import penstock as ps
        >>> from penstock.convert import token_digest
        >>> report = ps.convert("corpus.pbin", "corpus.bin", to="megatron")
        >>> token_digest(ps.open("corpus.bin")) == token_digest(ps.open("corpus.pbin")) == report.digest
        True
    """
    digest = DocumentDigest()
    for tokens, doc_lengths in runs_of(source, rule or EosRule(), path):
        digest.update(tokens, doc_lengths)
    return digest.hexdigest()


def write_tokens(plan: TokenPlan, output: Output, advance: Advance) -> Written:
    """Make the output visible; nothing is written where a run that was killed had done so."""
    if output.is_made():
        return Written(None, None)
    told = _told_digest(plan)
    digest = JoinedDigest() if told is not None and is_joinable(told) else DocumentDigest()
    with output.create() as writer:
        try:
            done = written_tokens = 0
            proof = DocumentsProof(plan.source) if told is None else None
            for tokens, doc_lengths in runs_of(plan.source, plan.rule, plan.shown, proof=proof):
                if isinstance(writer, PlanedWriter):
                    stop = written_tokens + len(tokens)
                    values = {name: one.read(written_tokens, stop) for name, one in planes_of(plan.source).items()}
                    writer.write_planed_run(tokens, doc_lengths, values)
                else:
                    _write_run(writer, tokens, doc_lengths)
                if told is not None:
                    digest.update(tokens, doc_lengths)
                written_tokens += len(tokens)
                done += len(doc_lengths)
                advance(done, f"of {len(plan.source):,}")
        except KeyboardInterrupt:
            plan.kept.hold = True  # what is written stays, hidden, for the same command
            raise
        found = digest.text() if isinstance(digest, JoinedDigest) else digest.hexdigest()
        if told not in (None, found):
            what, hint = (
                "the documents differ from the side file",
                "`penstock verify --depth full` finds the first difference",
            )
            raise Corrupt(what, path=plan.shown, found=found, expected=told, hint=hint)
        manifest = output.publish(writer.commit)
    return Written(manifest.digest, manifest)


def _told_digest(plan: TokenPlan) -> str | None:
    """What the source's side file says of what is written: a copy has its own digest, which would hide a difference."""
    manifest = getattr(plan.source, "manifest", None)
    if not isinstance(manifest, Manifest) or plan.rule.action != "keep":
        return None
    same = (manifest.num_samples, manifest.num_tokens) == (len(plan.source), plan.source.num_tokens)
    return manifest.digest if same else None


def verify_tokens(plan: TokenPlan, output: Output, written: Written) -> ReadBack:
    """Read the output back, and compare the digest of its documents with that of the source.

    Raises:
        Corrupt: it reads back differently.
    """
    source = output.dataset.open()
    known = written.manifest or getattr(source, "manifest", None)
    size_bytes = known.size_bytes if isinstance(known, Manifest) else 0
    if not is_token_source(source):
        return ReadBack(len(source), None, size_bytes)
    expected = written.digest
    if expected is None:
        expected = token_digest(plan.source, plan.rule, plan.shown)
    found = _joined_digest(source) if is_joinable(expected) else token_digest(source)
    if found != expected:
        raise Corrupt(
            "the converted dataset differs from the source when read back",
            path=output.place.path,
            found=found,
            expected=expected,
        )
    _verify_planes(planes_of(plan.source), planes_of(source), source.num_tokens, output.place)
    return ReadBack(len(source), found, size_bytes, source.num_tokens, source.dtype.itemsize)


def _verify_planes(given: Mapping[str, Plane], found: Mapping[str, Plane], num_tokens: int, place: Place) -> None:
    """Compare every value; raises `Corrupt`."""
    for name, one in given.items():
        for start in range(0, num_tokens, RUN_TOKENS):
            stop = min(num_tokens, start + RUN_TOKENS)
            if name not in found or found[name].read(start, stop).tobytes() != one.read(start, stop).tobytes():
                raise Corrupt(
                    f"the plane {name} of the converted dataset differs from the source when read back", path=place.path
                )


def _joined_digest(source: TokenSource) -> str:
    """The digest of version 2, which a folder of token files has."""
    digest = JoinedDigest()
    for tokens, doc_lengths in document_runs(source, RUN_TOKENS):
        digest.update(tokens, doc_lengths)
    return digest.text()


def runs_of(
    source: TokenSource,
    rule: EosRule,
    shown: str,
    first: int = 0,
    stop: int | None = None,
    *,
    proof: DocumentsProof | None = None,
) -> Iterator[tuple[NDArray[Any], IntArray]]:
    """Runs of documents `[first, stop)`, or of all, after the rule; raises as `proof.require` of what they are."""
    done = first
    if isinstance(source, ColumnTokens) and source.is_row_by_row:
        runs = source.runs(first, len(source) if stop is None else stop)
    else:
        runs = document_runs(source, RUN_TOKENS, first, stop)
    for tokens, doc_lengths in runs:
        if proof is not None:
            proof.require(done, done + len(doc_lengths))
        yield rule.apply(tokens, doc_lengths, done, shown)
        done += len(doc_lengths)


def _write_run(writer: Writer, tokens: NDArray[Any], doc_lengths: IntArray) -> None:
    if isinstance(writer, SupportsRuns):
        writer.write_run(tokens, doc_lengths)
    else:
        writer.write_batch({"tokens": np.split(tokens, np.cumsum(doc_lengths)[:-1])})
