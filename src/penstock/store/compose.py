"""Concatenation of ranges of files into one: inside an S3 store without a transfer, otherwise by a copy.

S3's UploadPartCopy takes at most 10,000 parts of 5 MiB to 5 GiB (the last one may be smaller). Smaller ranges, and
bytes at the border of two ranges, are downloaded and uploaded as separate parts ("carried").
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any, Protocol, TypeAlias, runtime_checkable

from penstock._optional import require
from penstock._threads import thread_pool
from penstock.abc import Staged
from penstock.errors import ConfigError, MissingExtra, PrepareError, Truncated, Unreachable
from penstock.store._credentials import s3_settings
from penstock.store._objects import is_expired
from penstock.store._remote_output import publish, scratch_file
from penstock.store.base import Store, View
from penstock.store.local import LocalStaged, LocalStore, output_exists
from penstock.store.put import aborting, chunks
from penstock.types import Buffer

LEAST_PART_BYTES = 5 << 20
MOST_PARTS = 10_000
_STEP_BYTES = 1 << 28
"""Longer ranges are split into parts, which the store copies concurrently."""
_HERE_BYTES = 10 << 20
"""Size of a part that is uploaded from this machine."""
_STREAM_BYTES = 1 << 26
_THREADS = 8

Extent: TypeAlias = tuple[str, int, int]
"""(path, first byte, bytes): a range of an object of the same bucket."""


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """One part of an object: ranges that this machine uploads, or a range that the store copies."""

    extents: tuple[Extent, ...]
    carried: bool


def join_ranges(store: Store, ranges: Sequence[Extent], target: str, *, here: str, scratch: str) -> bool:
    """Concatenate ranges into the new file `target`, durably; return False if it exists.

    The kernel copies them on this machine, and an object store itself if `compose` can. Otherwise all bytes are read
    and written again.

    Args:
        store: store of the ranges and the target.
        ranges: the ranges, in order.
        target: the new file.
        here: path of a local file; some ranges may be of this file.
        scratch: a folder in the file system of a local store.

    Raises:
        NotFound, Truncated: a file of a range is missing or too short.
        Unreachable: the store doesn't answer.
    """
    if store.is_local:
        made = os.path.join(scratch, os.path.basename(target))
        with aborting(LocalStore().stage(made)) as staged:
            for path, start, length in ranges:
                staged.append_file(path, start, length)
            staged.commit()
        return store.move_new(made, target)
    try:
        if not compose(store, ranges, target, here=here):
            _stream(store, ranges, target, here)
    except ConfigError:
        if not store.exists(target):
            raise
        return False
    return True


def _stream(store: Store, ranges: Sequence[Extent], target: str, here: str) -> None:
    remote = store.origin
    with aborting(store.stage(target)) as staged:
        for path, start, length in ranges:
            if path == here:
                staged.append_file(path, start, length)
                continue
            for chunk in chunks(remote, path, start, length, _STREAM_BYTES):
                staged.write(chunk)
        staged.commit()


def can_compose(store: Store) -> bool:
    """Return whether a store can join ranges itself, and boto3 is installed."""
    if _bucket_of(store) is None:
        return False
    try:
        require("boto3", extra="s3")
    except MissingExtra:
        return False
    return True


def compose(
    store: Store, parts: Sequence[Extent], target: str, *, here: str | None = None, create: bool = True
) -> bool:
    """Concatenate ranges into the object `target` if the store can do that itself; it becomes visible when complete.

    Args:
        store: store of the ranges and the target.
        parts: the ranges, in order; adjacent ranges of an object count as one.
        target: the object.
        here: path of a local file; ranges of it are uploaded.
        create: never replace an object.

    Returns:
        True if the object was made; False if this store can't, or would need too many parts: then stream the bytes.

    Raises:
        ConfigError: `target` exists, with `create`.
        NotFound: a range is of a missing object.
        Unreachable: the store rejected a part; uploaded parts are removed.
    """
    bucket = _bucket_of(store)
    if bucket is None or not can_compose(store):
        return False
    planned = plan_parts(parts, here)
    if not planned or len(planned) > MOST_PARTS:
        return False
    try:
        _Composition(_client(bucket), store.origin, bucket, target, here).make(planned, create=create)
    except Unreachable as error:
        if not is_expired(error):
            raise
        _Composition(_client(bucket, anew=True), store.origin, bucket, target, here).make(planned, create=create)
    if store.keeps_copies:
        store.forget(target)
    return True


def copy_new(store: Store, source: str, target: str, size_bytes: int) -> None:
    """Copy a file of this size within its store, by the store if possible.

    Raises:
        PrepareError: `target` exists with other bytes.
        NotFound, Truncated: the file is missing or has another size.
    """
    if size_bytes >= LEAST_PART_BYTES and (found := store.size(source)) != size_bytes:
        raise Truncated("the file has another size", path=source, found=found, expected=size_bytes)
    try:
        if size_bytes >= LEAST_PART_BYTES and compose(store, [(source, 0, size_bytes)], target):
            return
        with aborting(store.stage_new(target)) as staged:
            for chunk in _chunks(store, source, size_bytes):
                staged.write(chunk)
            if staged.tell() != size_bytes:
                raise Truncated("the file has another size", path=source, found=staged.tell(), expected=size_bytes)
            staged.commit()
    except ConfigError:
        if not store.exists(target):
            raise
        there = _chunks(store, target, store.size(target))
        if any(ours != theirs for ours, theirs in zip_longest(_chunks(store, source, size_bytes), there)):
            what = "another run wrote a file with this name"
            raise PrepareError(what, path=target, hint="Choose another output, or remove it") from None


def _chunks(store: Store, path: str, size_bytes: int) -> Iterator[bytes]:
    if size_bytes < LEAST_PART_BYTES:
        yield store.get(path)
        return
    yield from chunks(store, path, 0, size_bytes)


def plan_parts(extents: Sequence[Extent], here: str | None = None) -> list[ObjectPart]:
    """Return the parts of an object, all but the last at least 5 MiB, with as few carried bytes as possible.

    All ranges of the local file `here` are carried.
    """
    planned: list[ObjectPart] = []
    waiting: list[Extent] = []
    for path, start, length in _pieces(extents, here):
        missing = max(0, LEAST_PART_BYTES - _size(waiting)) if waiting else 0
        head = length if path == here or length - missing < LEAST_PART_BYTES else missing
        if head:
            waiting.append((path, start, head))
            start, length = start + head, length - head
        if waiting and _size(waiting) >= LEAST_PART_BYTES:
            planned.append(ObjectPart(tuple(waiting), carried=True))
            waiting = []
        while length:
            step = length if length < _STEP_BYTES + LEAST_PART_BYTES else _STEP_BYTES
            planned.append(ObjectPart(((path, start, step),), carried=False))
            start, length = start + step, length - step
    if waiting:
        planned.append(ObjectPart(tuple(waiting), carried=True))
    return planned


def _pieces(extents: Sequence[Extent], here: str | None) -> Iterator[Extent]:
    """Yield the ranges; ranges of the local file are split into pieces that fit in memory."""
    for path, start, length in _joined(extents):
        step = _HERE_BYTES if path == here else length
        yield from ((path, first, min(step, start + length - first)) for first in range(start, start + length, step))


def _joined(extents: Sequence[Extent]) -> Iterator[Extent]:
    """Yield the non-empty ranges; adjacent ranges of a file are merged."""
    last: Extent | None = None
    for path, start, length in extents:
        if last is not None and last[0] == path and last[1] + last[2] == start:
            last = (path, last[1], last[2] + length)
        elif length:
            if last is not None:
                yield last
            last = (path, start, length)
    if last is not None:
        yield last


def _size(extents: Sequence[Extent]) -> int:
    return sum(length for _, _, length in extents)


class _Composition:
    def __init__(self, client: Any, remote: Store, bucket: str, target: str, here: str | None) -> None:
        self._client = client
        self._remote = remote
        self._here = here
        self._target = target
        self._where = {"Bucket": bucket, "Key": _key_of(bucket, target)}

    def make(self, parts: Sequence[ObjectPart], *, create: bool) -> None:
        errors = require("botocore.exceptions", extra="s3")
        client, where = self._client, self._where
        try:
            upload = {**where, "UploadId": client.create_multipart_upload(**where)["UploadId"]}
            try:
                with thread_pool(_THREADS) as pool:
                    tags = list(pool.map(partial(self._put, upload), range(1, len(parts) + 1), parts))
                done = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
                condition = {"IfNoneMatch": "*"} if create else {}
                client.complete_multipart_upload(**upload, MultipartUpload={"Parts": done}, **condition)
            except BaseException:
                with contextlib.suppress(errors.ClientError, errors.BotoCoreError):
                    client.abort_multipart_upload(**upload)
                raise
        except errors.ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            taken = code in ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
            # If the answer to a completion was lost, the retry reports that the upload doesn't exist.
            if create and (taken or (code == "NoSuchUpload" and self._remote.exists(self._target))):
                raise output_exists(self._target) from None
            raise Unreachable("the store rejected a part of a copy", path=self._target, found=str(error)) from None
        except errors.BotoCoreError as error:
            raise Unreachable("the store doesn't answer", path=self._target, found=str(error)) from None

    def _put(self, upload: dict[str, str], number: int, part: ObjectPart) -> str:
        if part.carried:
            data = b"".join(map(self._read, part.extents))
            return str(self._client.upload_part(**upload, PartNumber=number, Body=data)["ETag"])
        ((path, start, length),) = part.extents
        source = {"Bucket": self._where["Bucket"], "Key": _key_of(self._where["Bucket"], path)}
        place = f"bytes={start}-{start + length - 1}"
        found = self._client.upload_part_copy(**upload, PartNumber=number, CopySource=source, CopySourceRange=place)
        return str(found["CopyPartResult"]["ETag"])

    def _read(self, extent: Extent) -> bytes:
        path, start, length = extent
        store: Store = LocalStore() if path == self._here else self._remote
        return store.get_ranges(path, [(start, start + length)])[0]


def _bucket_of(store: Store) -> str | None:
    """Return the bucket of an S3 store, and None for other stores."""
    scheme, _, bucket = store.origin.server.partition("://")
    return bucket if scheme == "s3" else None


def _key_of(bucket: str, path: str) -> str:
    return path.removeprefix(f"s3://{bucket}/").rstrip("/")


def _client(bucket: str, *, anew: bool = False) -> Any:
    """Return boto3's client for a bucket, with the settings of reads and uploads; raise `MissingExtra` without boto3.

    With `anew`, credentials are loaded again from their source.
    """
    boto3 = require("boto3", extra="s3")
    settings = s3_settings(bucket)
    names = {"access_key_id": "aws_access_key_id", "secret_access_key": "aws_secret_access_key"}
    names |= {"session_token": "aws_session_token", "region": "region_name"}
    given = {theirs: settings[ours] for ours, theirs in names.items() if ours in settings}
    endpoint = settings.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION")
    given |= {"region_name": region} if region else {}
    return (boto3.Session() if anew else boto3).client("s3", endpoint_url=endpoint, **given)


# --- unfinished uploads ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenUpload:
    """A multipart upload to `path` that was neither completed nor aborted; its parts are stored and billed."""

    path: str
    key: str
    upload_id: str


def open_uploads(store: Store, paths: Sequence[str]) -> list[OpenUpload]:
    """Return the open multipart uploads at or below some paths of an S3 bucket; other stores have none.

    Uploads of running workers are included. One request per path.
    """
    bucket, found = _bucket_of(store), dict[str, OpenUpload]()
    if bucket is None:
        return []
    with contextlib.suppress(MissingExtra), _no_matter():
        pages = _client(bucket).get_paginator("list_multipart_uploads")
        for path in paths:
            key = _key_of(bucket, path)
            for page in pages.paginate(Bucket=bucket, Prefix=key):
                for one in page.get("Uploads", ()):
                    if one["Key"] == key or one["Key"].startswith(f"{key}/"):
                        name, upload_id = str(one["Key"]), str(one["UploadId"])
                        found[upload_id] = OpenUpload(f"s3://{bucket}/{name}", name, upload_id)
    return list(found.values())


def abort_uploads(store: Store, uploads: Sequence[OpenUpload]) -> None:
    bucket = _bucket_of(store)
    if bucket is None:
        return
    for one in uploads:
        with _no_matter():
            _client(bucket).abort_multipart_upload(Bucket=bucket, Key=one.key, UploadId=one.upload_id)


@contextlib.contextmanager
def _no_matter() -> Generator[None]:
    """Ignore a store's refusal to list or abort uploads."""
    errors = require("botocore.exceptions", extra="s3")
    with contextlib.suppress(errors.ClientError, errors.BotoCoreError):
        yield


@runtime_checkable
class _TakesRanges(Protocol):
    def append_range(self, path: str, start_bytes: int, length_bytes: int) -> None: ...


def append_range(staged: Staged, store: Store, extent: Extent) -> None:
    """Append a range of another file of its store to a staged file; raise `NotFound` or `Truncated`.

    Local files are copied by the kernel, and remote ones by the store if `staged` comes from a `JoiningStore`.
    Otherwise all bytes are read and written.
    """
    path, start, length = extent
    if isinstance(staged, _TakesRanges):
        staged.append_range(path, start, length)
    elif store.is_local:
        staged.append_file(path, start, length)
    else:
        for chunk in chunks(store, path, start, length):
            staged.write(chunk)


def joining(store: Store, work: str | None) -> Store:
    """Return a store for a writer whose files an object store may concatenate itself.

    `work` is the digest of the plan shared with other writers of the same output, None if the writer replaces an
    output.
    """
    return JoiningStore(store, work) if store.origin.server else store


class JoiningStore(View):
    """An object store (`whole`; `remote` is without copies) whose staged files accept ranges of its files."""

    def __init__(self, whole: Store, work: str | None = None) -> None:
        super().__init__(whole)
        self.whole, self.remote = whole, whole.origin
        self.work = work

    def sweep(self, path: str) -> None:
        self.remote.sweep(path)

    def sweep_folder(self, path: str) -> None:
        self.remote.sweep_folder(path)

    def stage(self, path: str, *, overwrite: bool = False) -> JoinedStaged:
        if not overwrite and self.remote.exists(path):
            raise output_exists(path)
        return JoinedStaged(self, path, overwrite, scratch_file(path))

    def commit(self, staged: Sequence[Staged]) -> None:
        publish(staged)


@dataclass(slots=True)
class JoinedStaged:
    """A staged file of a `JoiningStore`; see `penstock.abc.Staged`."""

    _store: JoiningStore
    path: str
    _overwrite: bool
    _here: LocalStaged
    _extents: list[Extent] = field(default_factory=list[Extent])
    _size_bytes: int = 0

    def write(self, data: Buffer) -> int:
        return self._grown(lambda: self._here.write(data))

    def write_at(self, offset_bytes: int, data: Buffer) -> None:
        """Overwrite written bytes at the start of the file."""
        self._here.write_at(offset_bytes, data)

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        found, place, stop_bytes = list[bytes](), 0, offset_bytes + length_bytes
        for path, start, length in self._extents:
            low, high = max(offset_bytes, place), min(stop_bytes, place + length)
            if low < high:
                first = start + low - place
                if path:
                    found += self._store.remote.get_ranges(path, [(first, first + high - low)])
                else:
                    found.append(self._here.read_at(first, high - low))
            place += length
        return b"".join(found)

    def append_file(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> int:
        return self._grown(lambda: self._here.append_file(path, start_bytes, length_bytes))

    def append_range(self, path: str, start_bytes: int, length_bytes: int) -> None:
        if length_bytes:
            self._extents.append((path, start_bytes, length_bytes))
            self._size_bytes += length_bytes

    def tell(self) -> int:
        return self._size_bytes

    def sync(self) -> None:
        self._here.sync()

    def commit(self) -> None:
        """Let the store join its ranges and the written bytes; otherwise upload all of them."""
        store = self._store
        try:
            self._here.sync()
            here = self._here.hidden_path
            extents = [(path or here, start, length) for path, start, length in self._extents]
            joins = any(path for path, _, _ in self._extents)
            if joins and compose(store.whole, extents, self.path, here=here, create=not self._overwrite):
                return
            with aborting(store.whole.stage(self.path, overwrite=self._overwrite)) as staged:
                for path, start, length in extents:
                    if path == here:
                        staged.append_file(path, start, length)
                    else:
                        append_range(staged, store.remote, (path, start, length))
                staged.commit()
        finally:
            self.abort()

    def abort(self) -> None:
        self._here.abort()

    def _grown(self, append: Callable[[], int]) -> int:
        """Append to the local file, which is a range without a path."""
        start = self._here.tell()
        added = append()
        last = self._extents[-1] if self._extents else None
        if last is not None and not last[0] and last[1] + last[2] == start:
            self._extents[-1] = ("", last[1], last[2] + added)
        elif added:
            self._extents.append(("", start, added))
        self._size_bytes += added
        return added
