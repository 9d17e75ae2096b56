"""Check a dataset: header and sizes, the arrays of the index, the side file, tokens, and digests. Never writes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock._secrets import redact
from penstock.errors import Corrupt, NotFound, PenstockError
from penstock.formats._findings import Problem, Run, by_place
from penstock.formats._manifest import DATA
from penstock.formats._side_checks import check_side_file
from penstock.formats.tokens.checks import TokenRun, check_options, sampled_ranges
from penstock.formats.tokens.common import require_eos
from penstock.formats.tokens.ids import id_limit
from penstock.formats.tokens.joined import check_recorded
from penstock.formats.tokens.megatron.index import TRAILING, IndexArrays, index_problems, width_problem
from penstock.formats.tokens.megatron.kept import (
    KEPT,
    is_half_replaced,
    left_names,
    prefix_of,
    reading_commit,
    staged_names,
)
from penstock.formats.tokens.megatron.layout import (
    INDEX,
    bin_path,
    idx_path,
    megatron_facts,
    named_prefix,
    new_prefix,
    read_header,
    require_kind,
    side_file_path,
)
from penstock.formats.tokens.megatron.source import MegatronSource, last_sequence_problem
from penstock.store.base import Store
from penstock.types import Depth, Finding, Manifest, OpenOptions


def check_megatron(store: Store, path: str, options: OpenOptions, depth: Depth, run: Run = map) -> list[Finding]:
    """Return the findings by place. Memory: 16 bytes per sequence and 64 MiB.

    Raises:
        NotFound: neither of the two files exists.
        ConfigError: an option contradicts the data.
    """
    store = reading_commit(store, path)
    named, prefix = named_prefix(store, path), prefix_of(store, path)
    findings = list(_check_replacement(store, path, named))
    there = [store.exists(one) for one in (idx_path(prefix), bin_path(prefix))]
    if not any(there):
        raise NotFound("no such file", path=idx_path(prefix), hint="Check the path")
    if not all(there):
        return [*findings, _missing(prefix, has_index=there[0]).finding()]
    header = read_header(store, prefix)
    if isinstance(header, Problem):
        return [*findings, header.finding()]
    require_eos(prefix, header.kind.ids, options.eos_id)
    index = IndexArrays(store, prefix, header, store.size(bin_path(prefix)), options.read)
    width = width_problem(index)
    problems = [last_sequence_problem(index), *index_problems(index)] if width is None else [width]
    findings += [problem.finding() for problem in problems if problem is not None]
    sound = not any(one.severity == "error" and one.code != TRAILING for one in findings)
    if sound:
        require_kind(prefix, header.kind, options.layout)
    if header.num_sequences == 0:
        findings.append(
            Problem.warning("megatron.empty", idx_path(prefix), "no tokens", "Check the input", 18).finding()
        )
    num_tokens = int(index.lengths(0, header.num_sequences).sum()) if sound else None
    facts = functools.partial(megatron_facts, store, prefix, header.num_documents, num_tokens)
    manifest, side_findings = check_side_file("megatron", store, bin_path(prefix), side_file_path(prefix), facts)
    findings += side_findings
    if manifest is not None and not side_findings:  # it was written for these tokens, as by `repair`
        findings = [replace(one, severity="warning") if one.code == TRAILING else one for one in findings]
    documents = None
    if depth != "quick" and sound:
        source = MegatronSource(store, prefix, index, replace(options, vocab_size=None))
        tokens = TokenRun("megatron", bin_path(prefix), source.ids, skips_corrupt=True)
        recorded = None if side_findings else manifest
        findings += _check_tokens(source, tokens, options, recorded, depth, run if depth == "full" else map)
        documents = (tokens, source.doc_starts) if depth == "full" else None
    if depth == "full" and manifest is not None:
        files = {DATA: bin_path(prefix), INDEX: idx_path(prefix)}
        findings += check_recorded(store, "megatron", side_file_path(prefix), manifest, files, documents, run)
    return by_place(findings)


def _check_replacement(store: Store, path: str, prefix: str) -> Iterator[Finding]:
    """Report an interrupted commit, and leftovers of a writer that was killed while it replaced a dataset.

    Penstock reads a complete dataset, but other tools may miss the index.
    """
    names = staged_names(store, path)
    if names is not None:
        found, fix = f"the new dataset, stored as {', '.join(names)}", "`penstock repair --write` completes the commit"
        yield Finding(KEPT, "warning", idx_path(prefix), None, found, "an index", fix)
    left = left_names(store, prefix)
    if is_half_replaced(store, prefix):
        which, fix = "old", "restores the old dataset; re-running the interrupted command replaces it"
        if prefix_of(store, prefix) == new_prefix(prefix):
            which, fix = "new", "puts the new index in place"
        found, fix = f"the {which} dataset, stored as {', '.join(left)}", f"`penstock repair --write` {fix}"
        yield Finding(KEPT, "warning", idx_path(prefix), None, found, "an index", fix)
    elif left:
        found, fix = f"files of a replaced dataset: {', '.join(left)}", "`penstock repair --write` removes them"
        yield Finding(KEPT, "warning", idx_path(prefix), None, found, None, fix)


def _missing(prefix: str, *, has_index: bool) -> Problem:
    path = bin_path(prefix) if has_index else idx_path(prefix)
    again = f"`penstock repair {bin_path(prefix)} --format megatron --layout DTYPE --eos-id ID`"
    fix = (
        "Copy the tokens next to their index again"
        if has_index
        else f"Copy the index again, or rebuild it from the EOS tokens: {again}, with the dtype of ids such as int32"
    )
    return Problem("megatron.missing", NotFound, path, "one of the two files of the dataset is missing", fix)


@dataclass(frozen=True, slots=True)
class _ReadTask:
    """Tokens `[start, stop)` to search for invalid ids."""

    source: MegatronSource
    path: str
    start: int
    stop: int

    @property
    def described(self) -> str:
        """Name of the task in errors."""
        return f"{redact(self.path)}, tokens {self.start} to {self.stop}"


def _unreadable(task: _ReadTask) -> list[Finding]:
    try:
        task.source.tokens(task.start, task.stop)
    except Corrupt as error:
        return [Finding("megatron.id", "error", task.path, None, str(error.found), str(error.expected), error.hint)]
    except PenstockError as error:
        return [Finding("megatron.tokens", "error", task.path, error.offset_bytes, error.what, None, error.hint)]
    return []


def _check_tokens(
    source: MegatronSource, tokens: TokenRun, options: OpenOptions, manifest: Manifest | None, depth: Depth, do: Run
) -> Iterator[Finding]:
    """Check that tokens are valid ids, if the dtype allows others; then the vocabulary and the ends of documents."""
    tasks = (_ReadTask(source, tokens.path, start, stop) for start, stop in sampled_ranges(source.num_tokens, depth))
    # All tasks run, whatever the findings: the parts of a distributed check number them alike.
    wrong = [found for found in do(_unreadable, tasks) if found]
    known = None
    if manifest is not None and manifest.max_token_id is not None:
        # Readers that trust the side file don't look for invalid ids.
        known = min(manifest.max_token_id + 1, id_limit(source.header.kind.stored))
    starts = None if options.eos_id is None else source.doc_starts
    found = list(check_options(tokens, options, starts, depth, do, known))
    yield from wrong[0][:1] if wrong else found
