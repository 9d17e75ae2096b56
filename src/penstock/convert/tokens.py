"""Conversion of token documents: by one writer, or in parts, each with a run of documents.

The borders of parts depend only on the source. A worker writes the documents of a part in the width of the target,
with digests that can be joined. The single writer of a dataset appends all parts in order, so the bytes are the same as
without parts. The files of a folder of token files are written independently, as in `pack`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._arrays import byte_view
from penstock._kinds import JoinsRows, TokenParts, is_token_source
from penstock._tokens import DROP, Plane, planes_of
from penstock.abc import Executor, SupportsRuns, TokenSource, Writer
from penstock.codec.hashes import DocumentDigest
from penstock.codec.joined_digest import JoinedDigest, is_joinable
from penstock.codec.tokens import TOKEN_BYTES, check_ids, dtype_for, token_bytes_for_id, token_bytes_for_vocab
from penstock.convert.job import ConvertJob, ConvertReport, Dataset, ReadBack, Written, runs_elsewhere
from penstock.convert.request import EosRule, Request
from penstock.engine.parts import DocumentRuns, PartMeta, PartName, encode_end, made_of
from penstock.engine.plan import Plan
from penstock.engine.token_blocks import BlockWave, OneFile
from penstock.engine.token_files import FileJob, PartRange, TokenFiles, TokenOutputJob, append_range, as_parts
from penstock.engine.work import SCRATCH, Work, work_folder
from penstock.errors import ConfigError, Corrupt, PenstockError, Unsupported
from penstock.formats import files_at, finish_planes, get_format
from penstock.formats._exclusions import carried_list, excluded_count, excluded_list, kept, left_out, stored, whole_of
from penstock.formats._manifest import Provenance
from penstock.formats._planed_writer import PlanedWriter, planes_beside, require_place_for_planes, settle_planes
from penstock.formats._planes import EDGE_TOKENS, base_of, require_all_listed, require_intact
from penstock.formats._proof import DocumentsProof
from penstock.formats._sources import certain_eos
from penstock.formats._token_column import ColumnTokens, usual_column
from penstock.formats.tokens.common import document_runs
from penstock.formats.tokens.folder.side import NAME as FOLDER
from penstock.store.dry import dry_place
from penstock.store.exclude_list import NO_LIST
from penstock.store.local import LocalStore, output_exists
from penstock.store.memory import MemoryStore
from penstock.store.object_folder import require_no_writer
from penstock.store.place import Place, distinct_names
from penstock.store.put import aborting, commit_as
from penstock.types import IntArray, Manifest, OpenOptions

RUN_TOKENS = 1 << 22
TASK_TOKENS = 1 << 25
"""Tokens in a part."""

_WIDTH_OPTIONS = ("token_bytes", "dtype", "vocab_size")


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


def runs_of(
    source: TokenSource,
    rule: EosRule,
    shown: str,
    first: int = 0,
    stop: int | None = None,
    *,
    proof: DocumentsProof | None = None,
) -> Iterator[tuple[NDArray[Any], IntArray]]:
    """Read runs of the documents `[first, stop)`, prove them, and apply the EOS rule."""
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


@dataclass(kw_only=True)
class TokenJob(ConvertJob, TokenOutputJob[ConvertReport]):
    """A conversion of token documents.

    Attributes:
        source: the opened documents.
        rule: EOS rule.
        dataset: the dataset of the source.
        part_bytes: width in which the writer takes parts; 0 if it takes none or isn't needed.
        recorded: what the side file records of the options.
    """

    source: TokenSource
    rule: EosRule
    dataset: Dataset
    part_bytes: int
    recorded: Mapping[str, Any]
    preload = (__name__,)

    @property
    def shown(self) -> str:
        """Name of the source in errors."""
        return self.dataset.place.path

    @property
    def num_samples(self) -> int:
        return len(self.source)

    @property
    def token_bytes(self) -> int:
        return self.part_bytes or self.source.dtype.itemsize

    @property
    def is_folder(self) -> bool:
        return self.request.file_tokens is not None

    @property
    def to(self) -> str:
        return self.request.to.name

    @property
    def width(self) -> int:
        return self.part_bytes

    def expect(self) -> ReadBack:
        width = int(self.writer_options.get("token_bytes") or self.source.dtype.itemsize)
        num_tokens = self.source.num_tokens
        return ReadBack(len(self.source), None, num_tokens * width, num_tokens)

    @contextlib.contextmanager
    def dry_writer(self) -> Generator[Writer | None]:
        if not self.is_folder:
            with super().dry_writer() as writer:
                yield writer
            return
        with self.held(dry_place(self.output)):
            yield None

    @property
    def claims_output(self) -> bool:
        return not self.in_parts  # the writer or `hold` does it

    # --- one writer

    def write_alone(self) -> ConvertReport:
        if self.is_made():
            return self.publish(lambda: Written(None, None))
        recorded = self._recorded_digest()
        digest = JoinedDigest() if recorded is not None and is_joinable(recorded) else DocumentDigest()
        with self.create() as writer:
            try:
                start = 0
                proof = DocumentsProof(self.source) if recorded is None else None
                for tokens, doc_lengths in runs_of(self.source, self.rule, self.shown, proof=proof):
                    if isinstance(writer, PlanedWriter):
                        writer.write_planed_run(tokens, doc_lengths, self._plane_values(start, start + len(tokens)))
                    elif isinstance(writer, SupportsRuns):
                        writer.write_run(tokens, doc_lengths)
                    else:
                        writer.write_batch({"tokens": np.split(tokens, np.cumsum(doc_lengths)[:-1])})
                    if recorded is not None:
                        digest.update(tokens, doc_lengths)
                    start += len(tokens)
                    self.counter.add(len(doc_lengths))
            except KeyboardInterrupt:
                self.request.kept.hold = True  # the staged file stays for the same command
                raise
            found = digest.text() if isinstance(digest, JoinedDigest) else digest.hexdigest()
            if recorded not in (None, found):
                what = "the documents differ from the side file"
                hint = "`penstock verify --depth full` finds the first difference"
                raise Corrupt(what, path=self.shown, found=found, expected=recorded, hint=hint)
            return self.publish(lambda: self.commit_alone(writer))

    def commit_alone(self, writer: Writer) -> Written:
        manifest = writer.commit()
        return Written(manifest.digest, manifest)

    def _plane_values(self, start: int, stop: int) -> dict[str, Any]:
        return {name: one.read(start, stop) for name, one in planes_of(self.source).items()}

    def _recorded_digest(self) -> str | None:
        """Return the digest in the source's side file if it is that of the documents to write."""
        manifest = getattr(self.source, "manifest", None)
        if not isinstance(manifest, Manifest) or self.rule.action != "keep":
            return None
        same = (manifest.num_samples, manifest.num_tokens) == (len(self.source), self.source.num_tokens)
        return manifest.digest if same else None

    def check(self, written: Written) -> ReadBack:
        source = self.target.open()
        known = written.manifest or getattr(source, "manifest", None)
        size_bytes = known.size_bytes if isinstance(known, Manifest) else 0
        if not is_token_source(source):
            return ReadBack(len(source), None, size_bytes)
        expected = written.digest
        if expected is None:
            expected = token_digest(self.source, self.rule, self.shown)
        found = _joined_digest(source) if is_joinable(expected) else token_digest(source)
        if found != expected:
            what = "the converted dataset differs from the source when read back"
            raise Corrupt(what, path=self.output.path, found=found, expected=expected)
        _check_planes(planes_of(self.source), planes_of(source), source.num_tokens, self.output)
        return ReadBack(len(source), found, size_bytes, source.num_tokens, source.dtype.itemsize)

    # --- in parts

    @property
    def reads(self) -> list[Place]:
        return [self.dataset.place]

    @property
    def tasks(self) -> list[Documents]:
        return self._tasks

    @functools.cached_property
    def _tasks(self) -> list[Documents]:
        return cut_documents(self.source, self.shared.task_bytes)

    def hold(self) -> contextlib.AbstractContextManager[object]:
        return self.held()

    def open_output(self) -> Any:
        return self.target.open()

    @property
    def file_options(self) -> dict[str, Any]:
        return dict(self.writer_options)

    def published(self) -> Manifest | None:
        found, options = self.manifest(), self.writer_options
        if found is None or dict(found.inputs) != options["inputs"]:
            return None
        known = (found.eos_id, found.tokenizer_digest, dict(found.options))
        return found if known == (options["eos_id"], options["tokenizer_digest"], self._side_options()) else None

    def settle(self, made: Manifest) -> None:
        super().settle(made)
        if self.planes:  # the writer may have been killed before they counted
            settle_planes(get_format(self.target.format), self.output.store, self.output.path)

    def report_complete(self, made: Manifest) -> ConvertReport:
        return self.report(Written(made.digest, made, made.num_samples, was_complete=True))

    def require_free(self) -> None:
        place = self.output
        if self.is_folder or self.options.overwrite or self.split is not None:
            return  # `hold` checks a folder; a split is added to the existing ones
        if not place.is_local and place.is_folder():
            return  # in an object store a killed writer may have left some of it, and its work continues
        if any(place.store.exists(path) for path in files_at(self.target.format, place.path)[-1:]):
            raise output_exists(place.path)

    def start(self, work: Work, pool: Executor) -> None:
        self.pool = pool
        if self.is_folder:
            require_no_writer(self.output.store, self.output.child("index.json").path)

    def part_fn(self, work: Work) -> Callable[[Any], object]:
        limit = min(1 << 8 * self.part_bytes, self.writer_options.get("vocab_size") or 1 << 32)
        about = (self.dataset, self.rule, self.shown, self.output.path)
        return functools.partial(write_part, PartJob(*about, work.parts, self.part_bytes, limit))

    def commit(self, work: Work, wave: Any) -> ConvertReport:
        names = self.all_parts(work)
        if not self.is_folder:
            manifest = self._publish_one(work, wave, names)
        elif names:
            with self._planes_written():
                manifest = self.files(work).commit(names)
        else:
            hint = "A folder needs at least one token file"
            raise ConfigError("the source has no documents", path=self.shown, hint=hint)
        num_samples = sum(one.documents for one in names)
        return self.report(Written(manifest.digest, manifest, num_samples, len(names), work.reused))

    def _publish_one(self, work: Work, wave: Any, names: Sequence[PartName]) -> Manifest:
        """Make one dataset of all parts visible."""
        joined = self.joined(work)
        place = self.output if joined is None else joined.output
        options, overwrite = self.writer_options, self.options.overwrite
        with get_format(self.target.format).create(place.store, place.path, options, overwrite=overwrite) as writer:
            if isinstance(wave, BlockWave) and isinstance(writer, JoinsRows):
                wave.write(writer)
            else:
                for name in names:
                    append_range(as_parts(writer), work.parts, PartRange(name, 0, name.documents), self.part_bytes)
            with self._planes_written():
                return writer.commit()

    @contextlib.contextmanager
    def _planes_written(self) -> Generator[None]:
        """Write the planes of the output before the block makes it visible. Memory: 4 million values of each."""
        if not self.planes:
            yield
            return
        store, path, chosen = self.output.store, self.output.path, get_format(self.target.format)
        finish_planes(chosen.name, store, path)
        joins = self.options.is_distributed and self.is_folder
        with planes_beside(chosen, store, path, self.planes, joins=joins) as files:
            total = self.source.num_tokens
            for start in range(0, total, RUN_TOKENS):
                stop = min(total, start + RUN_TOKENS)
                files.write(files.as_stored(self._plane_values(start, stop), stop - start))
            edge = min(EDGE_TOKENS, total)
            files.publish(total, self.source.tokens(0, edge), self.source.tokens(total - edge, total))
            yield

    def all_parts(self, work: Work) -> list[PartName]:
        """Return all parts in order."""
        listed = work.all_parts()
        return [made_of(listed, task.number, self.output)[0] for task in self.tasks]

    def joined(self, work: Work) -> OneFile | None:
        return None if self.split is not None else super().joined(work)

    def files(self, work: Work) -> TokenFiles:
        options = dict(self.writer_options)
        recorded = {name: options[name] for name in ("eos_id", "tokenizer", "tokenizer_digest", "inputs")}
        provenance = Provenance(**recorded, options=self._side_options())
        options["inputs"] = {}  # they are in the folder's own side file
        places = (self.output, work.parts, work.place.child(SCRATCH))
        job = FileJob(*places, self.request.to.name, self.part_bytes, options)
        file_tokens = self.request.file_tokens or 1
        return TokenFiles(job, file_tokens, self.options.overwrite, provenance, work)

    def _side_options(self) -> dict[str, Any]:
        """Return the options in the side file; for a folder with the size of its files."""
        plain = msgspec.json.decode(msgspec.json.encode(dict(self.recorded), enc_hook=str))
        more = {"file_tokens": self.request.file_tokens, "to": self.request.to.name}
        return {**plain, **more} if self.is_folder else plain


def _check_planes(before: Mapping[str, Plane], after: Mapping[str, Plane], num_tokens: int, place: Place) -> None:
    """Compare every value; raise `Corrupt` if one differs."""
    for name, one in before.items():
        for start in range(0, num_tokens, RUN_TOKENS):
            stop = min(num_tokens, start + RUN_TOKENS)
            if name not in after or after[name].read(start, stop).tobytes() != one.read(start, stop).tobytes():
                what = f"the plane {name} of the converted dataset differs from the source when read back"
                raise Corrupt(what, path=place.path)


def _joined_digest(source: TokenSource) -> str:
    """Return the digest of version 2, which folders of token files have."""
    digest = JoinedDigest()
    for tokens, doc_lengths in document_runs(source, RUN_TOKENS):
        digest.update(tokens, doc_lengths)
    return digest.text()


# --- tasks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Documents:
    """A task: documents `[first, stop)` of the source."""

    number: int
    first: int
    stop: int

    @property
    def described(self) -> str:
        """Name in errors."""
        return f"documents {self.first} to {self.stop}"

    @property
    def num_samples(self) -> int:
        """Number of documents."""
        return self.stop - self.first


def cut_documents(source: TokenSource, task_tokens: int) -> list[Documents]:
    """Return the tasks. Each ends at the first document border at or after a multiple of `task_tokens`.

    If lengths would have to be read for it, tasks have equally many documents, estimated from the first of them.
    """
    if isinstance(source, ColumnTokens) and source.is_row_by_row:
        first = min(len(source), 256)
        tokens = sum(int(lengths.sum()) for _, lengths in source.runs(0, first))
        step = max(1, task_tokens * max(1, first) // max(1, tokens))
        stops = np.arange(step, len(source), step, dtype=np.int64)
    else:
        starts = source.doc_starts
        stops = np.unique(np.searchsorted(starts, np.arange(task_tokens, int(starts[-1]), task_tokens)))
    borders = [0, *(stop for stop in stops.tolist() if 0 < stop < len(source)), len(source)]
    pairs = itertools.pairwise(borders)
    return [Documents(number, *pair) for number, pair in enumerate(pairs) if pair[0] < pair[1]]


@dataclass(slots=True)
class PartJob:
    """The job of every worker.

    Attributes:
        dataset: the source.
        rule: EOS rule.
        shown: name of the source in errors.
        target: name of the output in errors.
        folder: folder of the parts.
        token_bytes: width of their tokens.
        limit: ids must be below it.
    """

    dataset: Dataset
    rule: EosRule
    shown: str
    target: str
    folder: Place
    token_bytes: int
    limit: int
    _opened: tuple[Any, DocumentsProof] | None = field(default=None, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[object, ...]:
        names = (self.shown, self.target)
        return (PartJob, (self.dataset, self.rule, *names, self.folder, self.token_bytes, self.limit))

    def open(self) -> tuple[Any, DocumentsProof]:
        """Open the source once per process: a digest may cover several tasks."""
        if self._opened is None:
            source = self.dataset.open()
            self._opened = (source, DocumentsProof(source))
        return self._opened


def write_part(job: PartJob, task: Documents) -> PartName:
    """Write the documents of a task as a part, unless it exists by now. Memory: a run of 2^22 tokens."""
    source, proof = job.open()
    dtype, content, documents = dtype_for(job.token_bytes, "<"), xxhash.xxh3_64(), DocumentRuns()
    found: list[IntArray] = [np.empty(0, np.int64)]
    temporary = job.folder.child(f"{task.number % 256:02x}/{task.number:08d}-000000")
    with aborting(temporary.store.stage(temporary.path)) as staged:
        first = task.first
        for tokens, lengths in runs_of(source, job.rule, job.shown, task.first, task.stop, proof=proof):
            check_ids(tokens, lengths, job.limit, first_doc=first, path=job.target)
            data = np.ascontiguousarray(tokens, dtype)
            staged.write(data)
            content.update(byte_view(data))
            documents.add(data, lengths)
            found.append(lengths)
            first += len(lengths)
        runs, all_lengths = documents.finish(), np.concatenate(found)
        highest = max((run.max_token_id for run in runs), default=-1)
        meta = PartMeta((), len(all_lengths), int(all_lengths.sum()), highest, (), runs)
        end = encode_end(all_lengths, meta)
        content.update(end)
        staged.write(end)
        name = PartName(task.number, 0, True, meta.documents, meta.tokens, 0, content.hexdigest())
        commit_as(staged, job.folder.child(name.path).path)
    return name


# --- the plan --------------------------------------------------------------------------------------------------------


def make_token_job(request: Request) -> TokenJob:
    """Open the source and plan the conversion of its documents.

    Raises:
        NotFound: the source doesn't exist.
        Unsupported: the source has no token documents, or the format can't be written in parts.
        ConfigError: options contradict each other or the data.
    """
    place, to, options = request.source, request.to.name, request.run_options
    if not isinstance(place, Place):
        what = f"{to} can only be created from a dataset with a path"
        raise ConfigError(what, path=request.target.path, hint="Use create")
    if isinstance(request.columns, Mapping) or request.group_rows is not None:
        raise ConfigError("documents of tokens have no columns and no groups", path=place.path)
    # Read, not mapped: mapped memory counts as ours for as long as the system has room.
    opening_options: dict[str, Any] = {"read": "pread", **request.source_options}
    opening = OpenOptions(**opening_options)
    if opening.tokens_column is None:  # the usual one is looked for without the options that need one
        planes = opening.planes if get_format(request.source_format).traits.tokens else "auto"
        rows = Dataset(place, request.source_format, replace(opening, mask_column=None, planes=planes)).open_all()
        if not is_token_source(rows) and (found := usual_column(stored(rows))) is not None:
            opening = replace(opening, tokens_column=found)
    dataset = Dataset(place, request.source_format, opening)
    whole = dataset.open_all()
    if opening.tokens_column is not None:  # documents stored as tokens are proved when they are read
        dataset.require_as_recorded(whole)
    carried = carried_list(whole) if options.keep_excluded else NO_LIST
    excluded = 0 if options.keep_excluded else excluded_count(whole)
    source = stored(whole) if options.keep_excluded else kept(whole)
    if options.keep_excluded or excluded:
        dataset = dataset.with_excludes(NO_LIST if options.keep_excluded else excluded_list(whole))
    if not is_token_source(source):
        hint = "It needs token documents: use pack first, or specify the column of token ids with --tokens-column"
        raise Unsupported(f"{to} can't hold these samples", path=place.path, hint=hint)
    request.rule.require_sense(place.path, source.eos_id)
    writer_options = _writer_options(source, place, request) | dict(request.target_options)
    if carried.entries:
        writer_options["options"] |= {"keep_excluded": [carried.digest]}
    identity = {"to": to, "source": source.fingerprint, "options": writer_options}
    identity |= {"eos": [request.rule.action, request.rule.eos_id]}
    split, is_folder = writer_options.get("split"), request.file_tokens is not None
    planes = _required_planes(source, place, request)
    in_parts = is_folder or runs_elsewhere(options) or work_folder(request.target, inside=is_folder).is_there()
    part_bytes, recorded = _try_writer(to, writer_options, request.target) if in_parts else (0, {})
    # The store of one writer continues the staged file of a killed one.
    store = LocalStore() if in_parts else LocalStore(kept=request.kept)
    target = replace(request.target, store=store) if request.target.is_local else request.target
    reading = OpenOptions(split=split, read="pread", excludes=NO_LIST)
    if in_parts and not options.dry_run:
        if not part_bytes:
            hint = "Omit workers and distributed options"
            raise Unsupported(f"the format {to!r} can't be written in parts", path=target.path, hint=hint)
        if planes:
            chosen = get_format(FOLDER if is_folder else to)
            require_place_for_planes(chosen, target.store, target.path, writer_options, planes)
    return TokenJob(
        request=request, target=Dataset(target, FOLDER if is_folder else to, reading), writer_options=writer_options,
        identity=identity, shared=_shared_plan(identity, request), in_parts=in_parts, split=split, planes=planes,
        lost=tuple(getattr(source, "only_here", ())), excluded=excluded, carried=carried.entries,
        source=source, rule=_checked_rule(request, source.eos_id), dataset=dataset,
        part_bytes=part_bytes, recorded=recorded,
    )  # fmt: skip


def _checked_rule(request: Request, recorded: int | None) -> EosRule:
    """Return the EOS rule, with the id that every document ends with according to the caller.

    If documents are found by this id, the last one may lack it. A recorded id needn't end every document.
    """
    promised = request.source_options.get("eos_id")
    if request.rule.action == "strip" and promised is None and recorded == request.rule.eos_id:
        return replace(request.rule, only_recorded=True)
    finds = request.source_options.get("one_document") or get_format(request.source_format).traits.borderless
    return request.rule if finds else replace(request.rule, promised=promised)


def _required_planes(source: TokenSource, place: Place, request: Request) -> dict[str, str]:
    """Return name → dtype of the planes to copy; raise `ConfigError` if that is impossible."""
    found = {name: str(one.dtype) for name, one in planes_of(source).items()}
    if found and request.rule.action != "keep":
        what = "planes can't be combined with adding or stripping EOS"
        raise ConfigError(what, path=place.path, found=f"--eos {request.rule.action}", hint=DROP)
    if found and base_of(request.to.name, request.target.path) is None:
        what = f"the format {request.to.name!r} can't have planes"
        raise ConfigError(what, path=place.path, found=", ".join(found), hint=DROP)
    require_intact(planes_of(source).values())
    options: Mapping[str, Any] = request.source_options
    if options.get("planes", "auto") is not None and options.get("split") is None:
        require_all_listed(request.source_format, place.store, place.path, stored(source))
    return found


def _shared_plan(identity: Mapping[str, Any], request: Request) -> Plan:
    """Return the plan that other runs follow, by the names of options that errors show."""
    options = {f"--{name.replace('_', '-')}": value for name, value in request.target_options.items()}
    options |= {"--to": identity["to"], "the source": identity["source"], "--eos": identity["eos"]}
    options |= {"--file-tokens": request.file_tokens, "--eos-id": identity["options"]["eos_id"]}
    options |= {"--overwrite": request.run_options.overwrite}
    plain = msgspec.json.decode(msgspec.json.encode(options, enc_hook=str))
    return Plan(options=plain, inputs=(), task_bytes=TASK_TOKENS, engine="convert")


def _try_writer(to: str, options: Mapping[str, Any], target: Place) -> tuple[int, Mapping[str, Any]]:
    """Return the width in which the writer takes parts, and what its side file records; raise the writer's errors."""
    try:
        with get_format(to).create(MemoryStore(), "target", dict(options), overwrite=False) as writer:
            return writer.part_bytes if isinstance(writer, TokenParts) else 0, writer.commit().options
    except PenstockError as error:
        error.path = target.path
        raise


def _writer_options(source: TokenSource, place: Place, request: Request) -> dict[str, Any]:
    rule = request.rule
    found = getattr(source, "manifest", None)
    manifest = found if isinstance(found, Manifest) else None
    requested = _requested_width(source, request.target_options)
    token_bytes = _token_bytes(source, manifest, rule) if requested is None else requested
    eos = {"eos": rule.action} | ({} if rule.eos_id is None else {"eos_id": rule.eos_id})
    has_width = any(name in request.target_options for name in _WIDTH_OPTIONS)
    return {
        **({} if has_width else {"token_bytes": token_bytes}),
        "eos_id": rule.known_after(certain_eos(source, place.path)),
        "tokenizer": None if manifest is None else manifest.tokenizer,
        "tokenizer_digest": None if manifest is None else manifest.tokenizer_digest,
        "inputs": {distinct_names([place])[0]: whole_of(source).fingerprint},
        # A format with one width for all ids records the source's, so that converting back gives the same bytes.
        "options": {"command": "convert", "token_bytes": token_bytes, **eos, **left_out(source)},
    }


def _requested_width(source: TokenSource, target_options: Mapping[str, Any]) -> int | None:
    """Return the width that is requested for ids of a column, which need not be searched for the largest then."""
    if not isinstance(stored(whole_of(source)), ColumnTokens):
        return None
    width, vocab_size = target_options.get("token_bytes"), target_options.get("vocab_size")
    if width is None and isinstance(vocab_size, int) and 1 <= vocab_size <= 1 << 32:
        width = token_bytes_for_vocab(vocab_size)
    return width if width in TOKEN_BYTES else None


def _token_bytes(source: TokenSource, manifest: Manifest | None, rule: EosRule) -> int:
    """Return the source's width; if its format has one for all ids, the recorded width or what the ids need."""
    width = source.dtype.itemsize
    largest = getattr(source, "max_token_id", None)
    if largest is not None:
        recorded = None if manifest is None else manifest.options.get("token_bytes")
        needed = token_bytes_for_id(largest)
        width = max(needed, recorded) if recorded in TOKEN_BYTES else needed
    return width if rule.action != "add" or rule.eos_id is None else max(width, token_bytes_for_id(rule.eos_id))
