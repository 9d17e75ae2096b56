"""Check a dataset: what is wrong, where, and what to do."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, Unpack, get_args, runtime_checkable

from penstock._keywords import Opening, were_given
from penstock._tree import ShownList
from penstock.abc import Format, Store
from penstock.check.row_maps import check_row_map
from penstock.engine.options import Counter, RunOptions
from penstock.errors import ConfigError, NotFound, PenstockError, UnsafeData, Unsupported
from penstock.formats import files_at, find_format
from penstock.formats._door import open_at, open_options
from penstock.formats._masks import check_mask, mask_path
from penstock.formats._planes import base_at, check_planes, listed_planes, planes_in_manifest, recorded_planes
from penstock.formats._side_checks import Run
from penstock.store.cache import CachedStore
from penstock.store.exclude_list import SUFFIX, ExcludeList
from penstock.store.local import LocalStore
from penstock.store.outputs import claimed
from penstock.store.place import Data, Given, Place, dataset_at, place_of
from penstock.store.side_file import load_manifest, record_in_side_file
from penstock.types import Depth, Finding, Manifest, OpenOptions

if TYPE_CHECKING:
    from penstock.check.verify_job import VerifyReport
    from penstock.executors import AnyExecutor

_CONTRADICTIONS = ("changed", "digest", "side-file", "added")
"""Last words of codes of findings that say that the data contradicts its side file."""


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
        given = _read_options("full", options)
        where = path.path if isinstance(path, Place) else path
        if not isinstance(where, str | os.PathLike):
            return found  # token files, of which nothing is decoded
        is_damaged = any(one.severity == "error" for one in found)
        decoded = decoding_findings(
            where, format=format, layout=given.layout, eos_id=given.eos_id, trust=given.trust,
            follow_links=given.follow_links, split=given.split, is_damaged=is_damaged,
        )  # fmt: skip
        return ShownList([*found, *decoded])
    how = RunOptions(executor, workers)
    given = _read_options(depth, options)
    place = dataset_at(path, follow_links=given.follow_links)
    chosen = find_format(place, format, given)
    found = _collect_findings(chosen, place, given, depth, lambda: _check(chosen, place, given, depth, how))
    return ShownList([*found, *check_row_map(chosen, place, given, depth)])


def _collect_findings(
    chosen: Format, place: Place, given: OpenOptions, depth: Depth, check: Callable[[], Iterable[Finding]]
) -> list[Finding]:
    """Return the findings of a check, of the exclude list and of planes; an error that stops the check is one."""
    if depth == "full" and isinstance(place.store, CachedStore):
        place.store.check_copies()  # the remote bytes are checked, not their copies in the cache
    found: list[Finding] = []
    try:
        found.extend(check())
    except UnsafeData as error:  # a link that leads out of the folder
        where = str(error.path or place.path)
        found.append(Finding(f"{chosen.name}.unsafe", "error", where, None, error.what, None, error.hint))
    except NotFound as error:
        where = str(error.path or place.path)
        if where == place.path or not (isinstance(place.store, LocalStore) and place.store.exists(where)):
            raise
        # A folder or a broken link in the place of a file of the dataset.
        found.append(Finding(f"{chosen.name}.no-file", "error", where, None, error.what, None, error.hint))
    return [
        *found,
        *_check_exclude_list(chosen, place, given),
        *_check_planes(chosen, place, given, depth),
        *_check_chat(chosen, place, given),
    ]


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
        path: the dataset, as in `verify`, with `depth`, `format` and `options`.
        how: how to run it; distributed.
        work: directory or URL for records, outside the dataset.

    Raises:
        ConfigError: the check of this format can't be distributed, `work` contains records of another check, or the
            dataset changed since the first part.
        Corrupt: the dataset changed while it was read.
    """
    from penstock.check.verify_job import VerifyJob
    from penstock.engine.plan import CHECK, Plan
    from penstock.engine.run import run

    if depth == "decode":
        raise ConfigError("decoding samples can't be distributed", hint="Check at --depth full (depth='full')")
    given = _read_options(depth, options)
    place = dataset_at(path, follow_links=given.follow_links)
    chosen = find_format(place, format, given)
    if not isinstance(chosen, _ChecksByTasks) or depth not in getattr(chosen, "share_depths", ()):
        what = f"the check of the format {chosen.name!r} at depth {depth} can't be distributed"
        depths = getattr(chosen, "share_depths", ())
        hint = f"Use --depth {' or '.join(depths)}" if depths else "Omit --part (part=)"
        raise ConfigError(what, path=place.path, hint=hint)
    options_given = were_given(options)
    if (named := _named_exclude_list(given)) is not None:
        options_given["excludes"] = named.shown

    def check(do_tasks: Run) -> list[Finding]:
        by_tasks = functools.partial(chosen.check_by_tasks, place.store, place.path, given, depth, do_tasks)
        return _collect_findings(chosen, place, given, depth, by_tasks)

    job = VerifyJob(
        output=place_of(work).bare(),
        options=how,
        counter=Counter(0, None),
        dataset=place,
        check=check,
        planned=Plan({"path": place.shown, "--format": chosen.name, "--depth": depth, **options_given}, (), 0, CHECK),
        preload=[type(chosen).__module__],
    )
    return run(job)


def _read_options(depth: str, options: Mapping[str, Any]) -> OpenOptions:
    if depth not in get_args(Depth):
        raise ConfigError(f"unknown depth {depth!r}", expected=" | ".join(get_args(Depth)))
    given = open_options(options)
    if (named := _named_exclude_list(given)) is not None:
        named.store.size(named.path)  # raises `NotFound` before the work
    return given


def _named_exclude_list(given: OpenOptions) -> Place | None:
    """Return the exclude list if it was given as a path."""
    return (
        None if given.excludes in (None, False) or isinstance(given.excludes, ExcludeList) else place_of(given.excludes)
    )


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
    ) -> Iterable[Finding]:
        """Like `check`, with the `map` of an executor as `run`."""
        ...


def _check(chosen: Format, place: Place, given: OpenOptions, depth: Depth, how: RunOptions) -> Iterable[Finding]:
    """Return the findings of a format's own check."""
    if not how.has_workers:
        return chosen.check(place.store, place.path, given, depth)
    if not isinstance(chosen, _ChecksByTasks) or depth not in chosen.task_depths:
        depths = " or ".join(chosen.task_depths) if isinstance(chosen, _ChecksByTasks) else None
        what = f"the format {chosen.name!r} can only be checked by a single process at depth {depth}"
        hint = "Omit --executor and --workers (executor=, workers=)"
        raise ConfigError(what, path=place.path, hint=f"{hint}, or check at depth {depths}" if depths else hint)
    from penstock.executors import make_executor

    with make_executor(how.executor or "processes", how.workers, [type(chosen).__module__], reads=[place]) as pool:
        return list(chosen.check_by_tasks(place.store, place.path, given, depth, pool.map))


def is_contradiction(finding: Finding, options: Mapping[str, Any]) -> bool:
    """Return whether a finding only says that the data contradicts its side file, or that this can't be read.

    Args:
        finding: a finding of `verify`.
        options: the options of `verify`. IDs are checked against the side file unless an option gives another limit.
    """
    what = finding.code.rpartition(".")[2]
    if what in ("token-range", "no-eos"):
        return options.get({"token-range": "vocab_size", "no-eos": "eos_id"}[what]) is None
    return what in _CONTRADICTIONS or finding.code in ("folder.missing", "webdataset.missing-file")


@runtime_checkable
class _MakesManifest(Protocol):
    """A format that can write the side file of data that another tool wrote."""

    def write_manifest(self, store: Store, path: str, options: OpenOptions, /, *, replace: bool = False) -> str:
        """Write the side file and return its path.

        Raises:
            Corrupt: the data contradicts the existing one, and `replace` is false.
        """
        ...


def write_side_file(
    path: str | os.PathLike[str], *, format: str | None = None, replace: bool = False, **options: Unpack[Opening]
) -> str:
    """Write the side file of a dataset: counts and digests of all its bytes. Return its path.

    Args:
        path: file, directory or URL.
        format: format name; detected by default.
        replace: replace an existing side file that the data contradicts or that can't be read.
        options: options of `penstock.open`.

    Raises:
        Unsupported: the format has no side files.
        Corrupt: the data contradicts the existing side file, and `replace` is false.
        PrepareError: another run writes this dataset.
    """
    given = open_options(options)
    place = dataset_at(path, follow_links=given.follow_links)
    chosen = find_format(place, format, given)
    if not isinstance(chosen, _MakesManifest):
        raise Unsupported(f"the format {chosen.name!r} has no side file", path=place.path)
    more = {"replace": True} if replace else {}  # formats of plug-ins may not have this parameter
    with claimed(place.store, *files_at(chosen.name, place.path)) as held:
        planes = _planes_to_record(chosen, held, place.path, given, replace=replace)
        side_path = chosen.write_manifest(held, place.path, given, **more)
        manifest = load_manifest(held, side_path)
        if manifest is not None and (planes or planes_in_manifest(manifest)):
            record_in_side_file(held, side_path, planes=planes)
        record_in_side_file(held, side_path, has_exclude_list=held.exists(side_path + SUFFIX))
        return side_path


def _planes_to_record(
    chosen: Format, store: Store, path: str, given: OpenOptions, *, replace: bool
) -> Mapping[str, str | None]:
    """Return the planes that belong to data whose side file is written again; raises `Corrupt` if one is missing."""
    base = base_at(chosen.name, store, path)
    if base is None or given.split is not None:
        return {}
    source: Any = chosen.open(store, path, given)
    if given.planes is None:
        return {} if replace else recorded_planes(source)
    return {one.name: one.digest for one in listed_planes(store, base, source)}
