"""Checks and claims of outputs, for every writer and every command that writes.

An output replaces a dataset only if the dataset's own index or side file lists every file there. It never replaces an
input, or a directory that contains one. A link is followed to its target, and stays. One writer claims the output from
the start to the commit.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar, cast

from penstock._limits import MOST_NAME_BYTES
from penstock.abc import Staged
from penstock.errors import ConfigError, NotFound, PenstockError, PrepareError
from penstock.store._files import is_folder, is_link, is_there, leads_somewhere, require_replaceable_file, status_of
from penstock.store._leftovers import Owned, folders_of, listed, refuse_unlisted, unlisted_files
from penstock.store._remote_output import RemoteClaim, is_at_work, sweep_claim
from penstock.store.base import StagedFolder, Store
from penstock.store.compose import JoiningStore
from penstock.store.exclude_list import require_no_list
from penstock.store.find import find_files
from penstock.store.local import output_exists
from penstock.store.lock import Claim, HeldClaims
from penstock.store.names import NEXT, STAGED
from penstock.store.object_folder import open_objects, require_no_writer
from penstock.store.patterns import all_alternatives, is_pattern
from penstock.store.place import absolute, is_url

StoreT = TypeVar("StoreT", bound=Store)

_ELSEWHERE = "Choose another output"
_SHORTER = "Choose a shorter one"
_OWN_NAMES = (".penstock", f".penstock{NEXT}", STAGED)
"""Suffixes of side files and of hidden files."""
_NO_FILE_HERE = (errno.EACCES, errno.EPERM, errno.EROFS)
_NONE: Mapping[str, os.stat_result] = MappingProxyType({})
_DATASET_MARKS = ("index.json", ".nv-meta", ".zgroup", "zarr.json", ".penstock")
"""Files that show that a folder is one dataset, and not a folder to search for files."""


def is_held(store: Store, path: str) -> bool:
    """Return whether another writer has claimed an output by its first file; in an object store, one of this host."""
    if not store.has_claims:
        return is_at_work(path)
    try:
        store.claim(path).release()
    except PrepareError:
        return True
    return False


def claim_files(store: Store, data: str, *others: str, side: str) -> Claim:
    """Claim an output of files: its data file, and the files next to it that hold its index.

    Raises:
        PrepareError: another writer has claimed one of them.
        ConfigError: one of them, or the side file, is a directory or a special file.
    """
    for path in (data, *others, side):
        require_file_or_none(store, path)
    _require_place_of_side_file(store, side)
    with contextlib.ExitStack() as stack:
        if not store.has_claims:
            work = store.work if isinstance(store, JoiningStore) else None
            stack.callback(RemoteClaim(store, data, work).release)
        for path in (data, *others):
            stack.callback(store.claim(path).release)
            store.sweep(path)
        _require_no_planes(store, side.removesuffix(".penstock"))
        return HeldClaims(stack.pop_all())


def require_own_side_file(store: Store, side: str) -> None:
    """Raise `ConfigError` if a side file can't be put at `side`, or belongs to data with an exclude list or planes.

    It can't be put there if something else has its name or the name of the next side file, or if a name is too long.
    """
    _require_place_of_side_file(store, side)
    _require_no_planes(store, side.removesuffix(".penstock"))


def _require_place_of_side_file(store: Store, side: str) -> None:
    following = side + NEXT
    if store.is_local and len(os.fsencode(os.path.basename(following))) > MOST_NAME_BYTES:
        what = "the name is too long, because side files add a suffix"
        raise ConfigError(
            what, path=side, expected=f"at most {MOST_NAME_BYTES} bytes including the suffix", hint=_SHORTER
        )
    for one in (side, following):
        if store.exists(one) and (_is_folder(store, one) or store.get(one, 0, 1) not in (b"", b"{")):
            raise ConfigError("the path of the side file is taken by something else", path=one, hint=_ELSEWHERE)
    require_no_list(store, side)


def _require_no_planes(store: Store, data: str) -> None:
    if store.is_local and store.replaces_planes:
        return
    planes = f"{data}.planes"  # in other stores, planes have their name before the data, and no folder is replaced
    if store.exists(planes) and (store.is_local or _is_object(store, data)):
        what, hint = "data with planes can't be replaced", f"Choose another output, or remove {planes} first"
        raise ConfigError(what, path=data, found=planes, hint=hint)


def sweep_killed(store: Store, paths: Iterable[str]) -> None:
    """Remove the leftovers of a writer killed after its commit; raise `PrepareError` if another holds the output."""
    for path in paths:
        if not store.has_claims:
            sweep_claim(store, path)
            store.sweep_folder(path)
        store.claim(path).release()
        store.sweep(path)


def sweep_complete(store: Store, paths: Sequence[str], own: Owned | None = None) -> None:
    """Do the same if no other run of the same work holds the output; such a run removes the leftovers itself.

    Args:
        store: store of the output.
        paths: files of the output, or its directory.
        own: returns the files that a directory lists; a hidden leftover of a replaced directory is removed, too.
    """
    with contextlib.suppress(PrepareError, ConfigError, OSError):
        sweep_killed(store, paths)
        if own is not None and store.is_local and is_folder(paths[0]):
            store.stage_folder(paths[0], overwrite=True, own=own).abort()  # starting an output removes leftovers


@contextlib.contextmanager
def claimed(store: StoreT, *paths: str, shared: bool = False) -> Generator[StoreT]:
    """Claim an output's files or directory, or a dataset, and yield a store whose writers share the claim.

    A `shared` claim is compatible with other workers of the same plan. Raises `PrepareError` if another writer holds
    the output.
    """
    with contextlib.ExitStack() as stack:
        first: Claim | None = None
        for path in paths:
            held = _claim_real(store, path, shared=shared)
            stack.callback(held.release)
            first = first or held
        yield store if first is None else cast(StoreT, store.holding(first))


def _claim_real(store: Store, path: str, *, shared: bool = False) -> Claim:
    """Claim the real path, so that other links to the same output are claimed too."""
    if not store.is_local:
        return store.claim(path, shared=shared)
    real = os.path.realpath(path)
    try:
        return store.claim(real, shared=shared)
    except OSError as error:
        if error.errno not in _NO_FILE_HERE or not is_folder(real):
            raise
    # Users who can't write to the parent folder share a lock in this folder, which they can't replace.
    return store.claim(os.path.join(real, ".penstock"), shared=shared)


def settled(store: Store, path: str) -> str:
    """Return the absolute path of a local output, so that a writer commits to the directory in which it started."""
    return absolute(path) if store.is_local else path


def output_path(store: Store, path: str) -> str:
    """Return the path of an output after following a link, without a trailing slash.

    Raises:
        ConfigError: a broken link, a directory with more than a dataset, or the name of a side file.
    """
    path = path.rstrip("/") or path  # else its side files would be inside a folder
    found = os.path.realpath(path) if store.is_local and is_link(path) else path
    if found.endswith(_OWN_NAMES):
        raise ConfigError("this name is reserved for side files", path=path, hint=_ELSEWHERE)
    if not store.is_local:
        return path
    if is_link(path) and (is_link(found) or not leads_somewhere(found)):
        raise ConfigError("the output is a broken link", path=path, found=_target(path), hint=_ELSEWHERE)
    if is_folder(found):
        _require_no_place(path, os.path.realpath(found))
    return settled(store, found)


def require_other(
    inputs: Iterable[str], output: str, *others: str, statuses: Mapping[str, os.stat_result] = _NONE
) -> None:
    """Raise `ConfigError` if an output would replace an input, contain one, or become part of one.

    Args:
        inputs: files and directories as named by the user; remote ones are compared by name.
        output: path of the output, as named by the user.
        others: further files that the output writes.
        statuses: known statuses of inputs that aren't links.
    """
    outs = [_place(path) for path in (output, *others)]
    out_statuses = [_status(out) for out in outs]
    there = any(status is not None for status in out_statuses)
    real = functools.cache(os.path.realpath)
    for named in (file for one in inputs for file in (_files_of(one) if there else (one,))):
        status = statuses.get(named)
        if status is None:
            one = _place(named)
            status = _status(one) if there else None
        else:
            folder, name = os.path.split(named)
            one = os.path.join(real(folder), name)
        for out, other in zip(outs, out_statuses, strict=True):
            if one == out or (status is not None and other is not None and os.path.samestat(status, other)):
                raise ConfigError("the output would replace an input", path=output, found=named, hint=_ELSEWHERE)
        if _is_in(one, outs[0]):
            raise ConfigError("the output contains an input", path=output, found=named, hint=_ELSEWHERE)
        if _is_in(outs[0], one):
            raise ConfigError(
                "the output is inside an input", path=output, found=named, hint="Choose one outside that dataset"
            )


def require_other_name(inputs: Iterable[str], output: str) -> None:
    """Raise `ConfigError` if the output has the name of an input, such as `m` of `m.bin` and `m.idx`."""

    def named(path: str) -> str:  # a link in the last part isn't followed
        folder, name = os.path.split(path.rstrip("/"))
        return path if is_url(path) else os.path.join(os.path.realpath(folder), name)

    same = next((one for one in inputs if named(one) == named(output)), None)
    if same is not None:
        what, hint = "the output is one of the inputs", "Choose another output"
        raise ConfigError(what, path=output, found=same, hint=hint)


def _files_of(named: str) -> Sequence[str]:
    if not is_pattern(named) or is_url(named) or is_there(named):
        return (named,)
    found: list[str] = []
    for one in all_alternatives(named):
        with contextlib.suppress(NotFound):  # an index that some files don't have
            found += find_files(one, [("",)], "input", follow_links=True)
    return found


def require_outside(folders: Iterable[str], output: str) -> None:
    """Raise `ConfigError` if an output is in one of these directories, and that directory is one dataset."""
    require_other([one for one in folders if is_one_dataset(one)], output)


def is_one_dataset(folder: str) -> bool:
    return any(is_there(os.path.join(folder, mark)) for mark in _DATASET_MARKS)


def open_folder(
    store: Store,
    path: str,
    own: Owned,
    *,
    overwrite: bool,
    held: Sequence[str],
    split: str | None = None,
    inside: bool = False,
    clashes: Callable[[str], bool] | None = None,
) -> StagedFolder:
    """Claim a directory as an output, and start it.

    Args:
        store: store of the output.
        path: path of the output, not a link.
        own: returns the files that a dataset of this format lists, for a dataset that is replaced.
        overwrite: replace an existing dataset.
        held: files that a store without directories publishes last; see `object_folder.open_objects`.
        split: claim only this part; other parts may be written at the same time.
        inside: the directory exists, and `path/split` is started.
        clashes: see `object_folder.open_objects`.

    Raises:
        ConfigError: existing files may not be replaced.
        PrepareError: another writer holds the output.
        Unsupported: a read-only store.
    """
    if not store.stages_folders:
        root, part = (f"{path}/{split}", "") if inside else (path, split or "")
        return open_objects(store, root, held, overwrite=overwrite, part=part, clashes=clashes)
    with contextlib.ExitStack() as stack:
        stack.callback(store.claim(path, shared=split is not None).release)
        if split is not None:
            stack.callback(store.claim(f"{path}.{split}").release)
        target, beside = (f"{path}/{split}", path) if inside else (path, None)
        folder = store.stage_folder(target, overwrite=overwrite, beside=beside, own=own)
        return _Folder(folder, stack.pop_all().close)


@dataclass(frozen=True, slots=True)
class Filled:
    """Content of a directory that is filled file by file, under names that are digests; see `filled_folder`.

    Attributes:
        own: lists the files of the dataset in it, the one that makes it visible last.
        last: name of that file.
        unfinished: returns whether a name belongs to unfinished work; such files stay, even if they are listed.
    """

    own: Owned
    last: str
    unfinished: Callable[[str], bool]


@contextlib.contextmanager
def filled_folder(store: Store, path: str, kind: Filled, *, overwrite: bool, shared: bool) -> Generator[None]:
    """Claim a directory whose last file makes it visible.

    Args:
        store: store of the directory.
        path: path of the directory, not a link.
        kind: its content.
        overwrite: replace an existing dataset; see `drop_listed`.
        shared: share the claim with workers of the same job.

    Raises: see `require_fillable`.
    """
    held = _claim_real(store, path, shared=shared)
    try:
        require_fillable(store, path, kind, overwrite=overwrite)
        yield
    finally:
        held.release()


def require_fillable(store: Store, path: str, kind: Filled, *, overwrite: bool) -> None:
    """Raise an error if a directory contains more than a replaceable dataset and unfinished work of its kind.

    Raises:
        ConfigError: there are other files; the message names three.
        PrepareError: a writer of the whole directory is running.
    """
    last = f"{path}/{kind.last}"
    if store.is_local and leads_somewhere(path) and not is_folder(path):
        raise ConfigError("the existing output is not a folder", path=path, hint="Choose another output, or remove it")
    require_no_writer(store, last)
    there = store.exists(last)
    if there and not overwrite:
        raise output_exists(path)
    _require_no_planes(store, last)
    names = listed(kind.own, path) if there else []
    refuse_unlisted(path, list(_unlisted(store, path, names or (), kind.unfinished)), names=names is not None)


def drop_listed(store: Store, folder: str, names: Iterable[str]) -> None:
    """Remove the files of a dataset that was replaced in its directory, and directories that become empty.

    Files that can't be removed stay, and nothing is removed through a link.
    """
    names = list(names)
    inside = store.within(folder) if store.is_local else store
    for name in names:
        with contextlib.suppress(PenstockError, OSError):
            inside.delete(f"{folder}/{name}")
    if inside.is_local:
        for one in sorted(folders_of(names), reverse=True):  # inner directories first
            with contextlib.suppress(OSError):
                inside.remove_folder(f"{folder}/{one}")


def _unlisted(store: Store, path: str, names: Collection[str], unfinished: Callable[[str], bool]) -> Iterator[str]:
    """Yield the relative paths of the other files of a directory, except unfinished work."""
    if store.is_local:
        yield from unlisted_files(path, names, unfinished)
        return
    known, above, start = set(names), folders_of(names), len(path.rstrip("/")) + 1
    with contextlib.suppress(NotFound):
        for one in store.list(path):
            name = one[start:]
            top, slash, _ = name.partition("/")
            if name not in known and (top + slash in above or not unfinished(top)):
                yield name


class _Folder:
    __slots__ = ("_folder", "_release", "path")

    def __init__(self, folder: StagedFolder, release: Callable[[], None]) -> None:
        self.path = folder.path
        self._folder = folder
        self._release = release

    def stage(self, name: str) -> Staged:
        return self._folder.stage(name)

    def size(self, path: str) -> int:
        return self._folder.size(path)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._folder.get_ranges(path, ranges)

    def commit(self, part: str | None = None, path: str | None = None) -> None:
        try:
            self._folder.commit(part, path)
        finally:
            self._release()

    def abort(self) -> None:
        try:
            self._folder.abort()
        finally:
            self._release()


def _place(path: str) -> str:
    return path.rstrip("/") if is_url(path) else os.path.realpath(path)


def _is_in(inner: str, outer: str) -> bool:
    return inner.startswith(outer.rstrip("/") + "/")


def _status(path: str) -> os.stat_result | None:
    return status_of(os.stat, path)


def _is_object(store: Store, path: str) -> bool:
    with contextlib.suppress(NotFound):
        return store.size(path) >= 0
    return False


def _is_folder(store: Store, path: str) -> bool:
    return store.is_local and is_folder(path)


def _target(link: str) -> str | None:
    try:
        return os.readlink(link)
    except OSError:
        return None


def _require_no_place(path: str, real: str) -> None:
    """Raise `ConfigError` for a directory that contains more than datasets."""
    home = os.path.realpath(os.path.expanduser("~"))
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = ""
    for inside, what in (("/", "the root"), (home, "your home directory"), (here, "the working directory")):
        if inside == real or (inside != "/" and _is_in(inside, real)):
            raise ConfigError(f"the output is {what} or contains it", path=path, hint="Choose a folder in it")
    if os.path.ismount(real):
        raise ConfigError("the output is a mount point", path=path, hint="Choose a folder in it")


def require_file_or_none(store: Store, path: str) -> None:
    """Raise `ConfigError` if a directory or a special file is at `path`."""
    if store.is_local:
        require_replaceable_file(path, follow_links=True)
