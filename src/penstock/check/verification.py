"""Check a dataset in this process, with workers, or in parts on several machines.

The check of a format yields its tasks in an order that depends only on the dataset. Part I of N does every N-th task
and records the results in one file of `DIR/.work`, named after its content. The finalize step runs the same check, uses
recorded results, does tasks without a result, and reports the same findings as a single run.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Unpack, cast, get_args, runtime_checkable

import msgspec
import xxhash

from penstock import errors
from penstock._keywords import Opening, were_given
from penstock._tree import ShownList
from penstock.abc import Executor, Format
from penstock.engine.options import Counter, RunOptions
from penstock.engine.run import Job, Wave, open_pool, run
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, UnsafeData
from penstock.formats import find_format
from penstock.formats._findings import Problem, Run
from penstock.formats._opening import open_at, open_options
from penstock.formats._planed import check_mask, mask_path
from penstock.formats._planes import base_at, check_planes
from penstock.store.base import Store
from penstock.store.exclude_list import SUFFIX, ExcludeList
from penstock.store.place import Data, Given, Place, dataset_at, place_of
from penstock.store.put import put_new
from penstock.store.row_map import is_damaged, read_row_map, row_map_path
from penstock.types import Depth, Finding, Manifest, OpenOptions

if TYPE_CHECKING:
    from penstock.engine.folder import WorkFolder
    from penstock.engine.parts import PartName
    from penstock.engine.plan import Plan
    from penstock.engine.work import Work
    from penstock.executors import AnyExecutor

_RESTART = "Check again: restart (--finish --restart), or choose another folder for the records: work= (--work)"


def verify(
    path: Data,
    *,
    depth: Depth | Literal["decode"] = "sample",
    format: str | None = None,
    workers: int | None = None,
    executor: AnyExecutor | None = None,
    **options: Unpack[Opening],
) -> list[Finding]:
    """Check a dataset. Never writes to it, and never raises an error because of bad data.

    Args:
        path: file, directory or URL.
        depth: `"quick"` reads the header, sizes and the structure of the index; `"sample"` also some content; `"full"`
            every byte and digest; `"decode"` also decodes each sample (except audio and video) and checks typed fields.
        format: format name; detected by default.
        workers: number of workers. By default this process.
        executor: `"processes"` (if `workers` is given), `"inline"`, `"ray"`, another name, or an executor; see
            `penstock.executors`. Shards are checked one by one, and digests of files in blocks of 64 MiB.
        options: options of `penstock.open`, such as `vocab_size=` and `eos_id=`.

    Returns:
        The findings, ordered by place; an empty list if there are none.

    Raises:
        NotFound: there is nothing at `path` or `excludes`.
        Unsupported: no format recognizes the data, or the format has no check.
        ConfigError: the check can't be divided for the executor.

    Examples:
        >>> import os
        >>> import penstock as ps
        >>> ps.verify("corpus.pbin", depth="full")
        []
        >>> os.truncate("corpus.pbin", 60)
        >>> [(finding.code, finding.severity) for finding in ps.verify("corpus.pbin")]
        [('pbin.truncated', 'error')]
    """
    if depth == "decode":
        from penstock.check.lint import decoding_findings  # imports several formats

        found = verify(path, depth="full", format=format, workers=workers, executor=executor, **options)
        where = path.path if isinstance(path, Place) else path
        if not isinstance(where, str | os.PathLike):
            return found  # token files, of which nothing is decoded
        is_broken = any(one.severity == "error" for one in found)
        return ShownList([*found, *decoding_findings(where, format, open_options(options), is_damaged=is_broken)])
    return ShownList(run(_job(path, RunOptions(executor, workers), depth, format, options)).findings or [])


def verify_in_parts(
    path: str | os.PathLike[str],
    how: RunOptions,
    *,
    work: Given,
    depth: Depth | Literal["decode"] = "sample",
    format: str | None = None,
    **options: Unpack[Opening],
) -> VerifyReport:
    """Run one part of a distributed check, or its finalize step. Never writes to the dataset.

    Args:
        path: the dataset, as in `verify`.
        how: how to run it; distributed.
        work: directory or URL for records, outside the dataset.
        depth: as in `verify`.
        format: as in `verify`.
        options: as in `verify`.

    Raises:
        ConfigError: the check of this format can't be distributed, `work` contains records of another check, or the
            dataset changed since the first part.
        Corrupt: the dataset changed while it was read.
    """
    if depth == "decode":
        raise ConfigError("decoding samples can't be distributed", hint="Check at --depth full (depth='full')")
    return run(_job(path, how, depth, format, options, place_of(work).bare()))


def _job(
    path: Data, how: RunOptions, depth: Depth, format: str | None, options: Opening, records: Place | None = None
) -> VerifyJob:
    if depth not in get_args(Depth):
        raise ConfigError(f"unknown depth {depth!r}", expected=" | ".join(get_args(Depth)))
    given = open_options(options)
    planned = were_given(options)
    if (named := _named_exclude_list(given)) is not None:
        named.store.size(named.path)  # raises `NotFound` before the work
        planned["excludes"] = named.shown
    dataset = dataset_at(path, follow_links=given.follow_links)
    chosen = find_format(dataset, format, given)
    return VerifyJob(records or dataset, how, dataset, chosen, given, depth, planned)


def _named_exclude_list(given: OpenOptions) -> Place | None:
    return (
        None if given.excludes in (None, False) or isinstance(given.excludes, ExcludeList) else place_of(given.excludes)
    )


# --- the job ---------------------------------------------------------------------------------------------------------


@runtime_checkable
class _ChecksByTasks(Protocol):
    """A format whose check can be divided into tasks.

    Attributes:
        task_depths: the depths at which tasks can be done by workers. At the depths in the optional attribute
            `share_depths`, everything that takes long is a task.
    """

    task_depths: tuple[Depth, ...]

    def check_by_tasks(
        self, store: Store, path: str, options: OpenOptions, depth: Depth, run: Any, /
    ) -> Iterable[Finding]: ...


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Result of a run of a distributed check.

    Attributes:
        findings: those of the whole dataset; None if parts are missing.
        tasks: number of tasks done by this run.
        part: `(i, n)` if this was part i.
        missing: indices of missing parts, with `no_work`.
    """

    findings: list[Finding] | None
    tasks: int
    part: tuple[int, int] | None = None
    missing: tuple[int, ...] = ()


@dataclass(frozen=True)
class VerifyJob(Job[VerifyReport]):
    """The check of a dataset.

    The number of parts is unknown until the first one starts, so parts are tasks of the second wave, the only one.

    Attributes:
        output: the directory of the records of a distributed check.
        options: how to run it.
        dataset: the dataset.
        format: format of the dataset.
        opening: options to open it.
        depth: depth of the check.
        planned: the opening options that differ from their defaults.
        counter: counts tasks of a distributed check.
    """

    output: Place
    options: RunOptions
    dataset: Place
    format: Format
    opening: OpenOptions
    depth: Depth
    planned: Mapping[str, Any]
    counter: Counter = field(default_factory=lambda: Counter(0, None))

    def __post_init__(self) -> None:
        if not self.options.is_distributed:
            return
        depths = getattr(self.format, "share_depths", ())
        if not isinstance(self.format, _ChecksByTasks) or self.depth not in depths:
            what = f"the check of the format {self.format.name!r} at depth {self.depth} can't be distributed"
            hint = f"Use --depth {' or '.join(depths)}" if depths else "Omit --part (part=)"
            raise ConfigError(what, path=self.dataset.path, hint=hint)
        if f"{self.output.absolute.rstrip('/')}/".startswith(f"{self.dataset.absolute.rstrip('/')}/"):
            what = "the folder for records is inside the dataset, which a check never modifies"
            hint = "Choose another folder for the records: work= (--work)"
            raise ConfigError(what, path=self.output.path, hint=hint)

    def write(self) -> VerifyReport:
        return VerifyReport(self.check(None), 0)

    def write_in_parts(self) -> VerifyReport:
        if self.options.is_distributed:
            return super().write_in_parts()
        with open_pool(self.options, self.preload, reads=[self.dataset]) as pool:
            return VerifyReport(self.check(pool.map), 0)

    @property
    def preload(self) -> Sequence[str]:  # type: ignore[override]
        return [type(self.format).__module__]

    @property
    def folder(self) -> WorkFolder:
        from penstock.engine.work import work_folder

        return work_folder(self.output, inside=True)

    @property
    def reads(self) -> Sequence[Place]:
        return (self.dataset,)

    @property
    def tasks(self) -> Sequence[Any]:
        return ()

    @property
    def most_workers(self) -> None:
        return None

    def plan(self) -> Plan:
        from penstock.engine.plan import CHECK, Plan

        options = {"path": self.dataset.shown, "--format": self.format.name, "--depth": self.depth, **self.planned}
        return Plan(options, (), 0, CHECK)

    def part_fn(self, work: Work) -> Callable[[Any], object]:
        return id

    def wave(self, work: Work) -> Wave:
        return _Parts(self, work)

    def commit(self, work: Work, wave: Any) -> VerifyReport:
        return VerifyReport(wave.findings, self.counter.done)

    def unfinished(self, work: Work, missing: tuple[int, ...] = ()) -> VerifyReport:
        if missing and work.num_job_parts() is None:
            work.clear()  # no part has started, so there is nothing to keep
        return VerifyReport(None, self.counter.done, self.options.part, missing)

    def check(self, do_tasks: Run | None) -> list[Finding]:
        """Return all findings; an error that stops the check is one. `do_tasks` does the tasks of the check."""
        chosen, place, given, depth = self.format, self.dataset, self.opening, self.depth
        if depth == "full" and place.store.keeps_copies:
            place.store.check_copies()  # the remote bytes are checked, not their copies in the cache
        found: list[Finding] = []
        try:
            found.extend(self._check_format(do_tasks))
        except UnsafeData as error:  # a link that leads out of the folder
            where = str(error.path or place.path)
            found.append(Finding(f"{chosen.name}.unsafe", "error", where, None, error.what, None, error.hint))
        except NotFound as error:
            where = str(error.path or place.path)
            if where == place.path or not (place.store.is_local and place.store.exists(where)):
                raise
            # A folder or a broken link in the place of a file of the dataset.
            found.append(Finding(f"{chosen.name}.no-file", "error", where, None, error.what, None, error.hint))
        return [
            *found,
            *_check_exclude_list(chosen, place, given),
            *_check_planes(chosen, place, given, depth),
            *_check_chat(chosen, place, given),
            *_check_row_map(chosen, place, given, depth),
        ]

    def _check_format(self, do_tasks: Run | None) -> Iterable[Finding]:
        chosen, place, depth = self.format, self.dataset, self.depth
        if do_tasks is None:
            return chosen.check(place.store, place.path, self.opening, depth)
        depths = chosen.task_depths if isinstance(chosen, _ChecksByTasks) else ()
        if not isinstance(chosen, _ChecksByTasks) or not (self.options.is_distributed or depth in depths):
            what = f"the format {chosen.name!r} can only be checked by a single process at depth {depth}"
            more = f", or check at depth {' or '.join(depths)}" if depths else ""
            raise ConfigError(what, path=place.path, hint=f"Omit --executor and --workers (executor=, workers=){more}")
        return list(chosen.check_by_tasks(place.store, place.path, self.opening, depth, do_tasks))


# --- what checks of all formats share --------------------------------------------------------------------------------


def _check_planes(chosen: Format, place: Place, given: OpenOptions, depth: Depth) -> list[Finding]:
    """Return the findings of planes; none if the data can't be opened, which the format's check reports."""
    base = base_at(chosen.name, place.store, place.path)
    has_mask = mask_path(chosen.name, place.path) is not None
    if (base is None and not has_mask) or given.planes is None or given.split is not None:
        return []
    try:
        source: Any = chosen.open(place.store, place.path, given)
    except (PenstockError, OSError):
        return []
    if base is None:
        return check_mask(chosen.name, place.store, place.path, source.num_tokens)
    return list(check_planes(place.store, base, chosen.name, source, full=depth == "full"))


def _check_chat(chosen: Format, place: Place, given: OpenOptions) -> Iterator[Finding]:
    """Yield a finding for conversations that version 0.2.0 packed: their side file records no `chat-eos`."""
    try:
        manifest = getattr(chosen.open(place.store, place.path, given), "manifest", None)
    except (PenstockError, OSError):
        return
    if isinstance(manifest, Manifest) and (split := manifest.options.get("chat-split-markers")):
        what = f"{', '.join(map(str, split))} in the chat template aren't single tokens of the tokenizer"
        fix = "Add them to the tokenizer and pack again"
        yield Finding(f"{chosen.name}.chat-markers", "warning", place.path, None, what, "one token each", fix)
    if not isinstance(manifest, Manifest) or "chat" not in manifest.options or "chat-eos" in manifest.options:
        return
    inputs, field = " ".join(map(shlex.quote, list(manifest.inputs)[:3])), manifest.options.get("field", "messages")
    eos = f"--eos {shlex.quote(str(manifest.options['eos']))} " if "eos" in manifest.options else ""
    yield Finding(
        f"{chosen.name}.old-chat",
        "warning",
        place.path,
        None,
        f"conversations packed by {manifest.tool or 'penstock 0.2.0'}: message marks such as weight were "
        "ignored; null and reasoning keys of messages and null fields of tables may have been rendered as text or "
        "dropped; the appended EOS is not trained on",
        None,
        f"Pack again: penstock pack {inputs}{' ...' if len(manifest.inputs) > 3 else ''} -o {shlex.quote(place.shown)} "
        f"--tokenizer {manifest.tokenizer or 'TOKENIZER'} {eos}--chat --field {shlex.quote(str(field))} --overwrite",
    )


def _check_exclude_list(chosen: Format, place: Place, given: OpenOptions) -> Iterator[Finding]:
    """Yield a finding if the exclude list can't be read or belongs to other data."""
    named = _named_exclude_list(given)
    try:
        open_at(chosen, place.store, place.path, given)
    except (PenstockError, OSError) as error:
        path = str(getattr(error, "path", None))
        if isinstance(error, PenstockError) and (path.endswith(SUFFIX) or (named is not None and path == named.path)):
            found, expected = str(error.found), None if error.expected is None else str(error.expected)
            yield Finding(f"{chosen.name}.exclude-list", "error", path, None, f"{error.what}: {found}", expected,
                          error.hint)  # fmt: skip


def _check_row_map(chosen: Format, place: Place, given: OpenOptions, depth: Depth) -> Iterator[Finding]:
    """Yield a finding if the row map doesn't belong to the data or is damaged.

    Its rows are read at depth `full`. In an object store, it is only looked for at that depth.
    """
    path = row_map_path(place.path)
    if not (place.is_local or depth == "full") or not place.store.exists(path):
        return
    try:
        manifest = getattr(chosen.open(place.store, place.path, given), "manifest", None)
        row_map = read_row_map(place, manifest if isinstance(manifest, Manifest) else None)
        if row_map is None or depth != "full" or not is_damaged(row_map, place.store):
            return
        found = "the rows differ from those written"
    except (ConfigError, Corrupt) as error:
        found = error.what
    except (PenstockError, OSError):
        return  # the data can't be read, which is a finding already
    fix = "Rebuild the dataset with --keep-map, or remove the map so that `exclude` and `explain` don't use it"
    yield Finding(f"{chosen.name}.row-map", "error", path, None, found, None, fix)


# --- parts and their records -----------------------------------------------------------------------------------------


class _Part(NamedTuple):
    number: int


class _Parts(Wave):
    """The parts of a check.

    Attributes:
        findings: those of the whole dataset, after the finalize step.
    """

    def __init__(self, job: VerifyJob, work: Work) -> None:
        self._job = job
        self._work = work
        self._records = {part: names[0] for part, names in work.listed().items()}
        self.tasks = list(map(_Part, range(work.num_job_parts() or 1)))
        self.findings: list[Finding] | None = None

    def done(self) -> Mapping[int, PartName]:
        return self._records

    def run(self, pool: Executor, tasks: Sequence[_Part]) -> None:
        """Do these parts in one pass over the check; the finalize step also collects all findings."""
        is_final, work = self._job.options.finish, self._work
        if not tasks and not is_final:
            return
        chosen = {task.number for task in tasks}
        records = {part: _read_record(work, name) for part, name in self._records.items()} if is_final else {}
        run = _PartsRun(pool.map, len(self.tasks), chosen, {part: iter(one.results) for part, one in records.items()})
        findings = self._job.check(run)
        work.require_unchanged_inputs()
        for part, record in records.items():
            if (record.tasks, record.digest) != (run.total, run.digest()):
                what = f"the dataset changed after part {part} checked it"
                raise Corrupt(what, path=self._job.output.path, found=f"{run.total} tasks", hint=_RESTART)
        for part in chosen:
            _write_record(work, part, run)
        work.listed()  # raises if a part ran twice with different results
        self._job.counter.add(sum(map(len, run.results.values())))
        self.findings = findings if is_final else None


class _PartsRun:
    """Does the tasks of chosen parts; for tasks of other parts, returns the recorded result, or nothing.

    Args:
        run: does tasks.
        count: number of parts.
        chosen: the parts to do.
        known: results of other parts, in the order of their tasks.
    """

    def __init__(self, run: Run, count: int, chosen: Collection[int], known: Mapping[int, Iterator[Any]]) -> None:
        self._run = run
        self._count = count
        self._known = known
        self._hasher = xxhash.xxh3_64()
        self.total = 0
        self.results: dict[int, list[Any]] = {part: [] for part in chosen}

    def digest(self) -> str:
        """Return the digest of the descriptions of all tasks."""
        return self._hasher.hexdigest()

    def __call__(self, fn: Callable[[Any], Any], tasks: Iterable[Any], /) -> Iterator[Any]:
        """Yield the result of each task in order; an empty tuple if it is unknown."""
        from penstock.executors.law import described  # not needed by other checks

        numbered = list(enumerate(tasks, self.total))
        self.total += len(numbered)
        for _, task in numbered:
            self._hasher.update(f"{described(task)}\n".encode())
        results = iter(self._run(fn, [task for number, task in numbered if number % self._count in self.results]))
        for number, _ in numbered:
            part = number % self._count
            if part in self.results:
                result = next(results)
                self.results[part].append(_to_json(result))
                yield result
            else:
                yield _from_json(next(self._known[part], ())) if part in self._known else ()


class _Record(msgspec.Struct):
    """Results of one part.

    Attributes:
        tasks: number of tasks of all parts.
        digest: digest of the descriptions of these.
        results: those of this part's tasks, as JSON.
    """

    tasks: int
    digest: str
    results: list[Any]


def _write_record(work: Work, part: int, run: _PartsRun) -> None:
    from penstock.engine.parts import PartName

    results = run.results[part]
    data = msgspec.json.encode(_Record(run.total, run.digest(), results))
    name = PartName(part, 0, True, len(results), run.total, 0, xxhash.xxh3_64_hexdigest(data))
    put_new(work.folder.store, work.parts.child(name.path).path, data)


def _read_record(work: Work, name: PartName) -> _Record:
    path = work.parts.child(name.path).path
    try:
        data = work.folder.store.get(path)
        if xxhash.xxh3_64_hexdigest(data) == name.digest:
            return msgspec.json.decode(data, type=_Record)
    except (NotFound, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    raise Corrupt("a record of the distributed job is damaged", path=path, hint=_RESTART)


_KINDS: dict[str, type[Any]] = {"finding": Finding, "problem": Problem}


def _to_json(value: Any) -> Any:
    """Return a result as JSON: strings, integers, findings, problems, and lists of these."""
    for name, kind in _KINDS.items():
        if isinstance(value, kind):
            each = (getattr(value, one.name) for one in fields(cast(Any, kind)))
            return {name: [one.__name__ if isinstance(one, type) else one for one in each]}
    if isinstance(value, list | tuple):
        return [_to_json(one) for one in cast(Sequence[Any], value)]
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"a result of type {type(value).__name__}")


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        ((name, values),) = cast(dict[str, list[Any]], value).items()
        if name == "problem":
            kind = getattr(errors, values[1], None)
            values[1] = kind if isinstance(kind, type) and issubclass(kind, PenstockError) else Corrupt
        return _KINDS[name](*values)
    return [_from_json(one) for one in cast(list[Any], value)] if isinstance(value, list | tuple) else value
