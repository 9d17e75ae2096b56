"""The original's writers, on top of `penstock.create`: nothing is visible before it is complete.

They differ from the original where it loses data: leaving a `with` block by an exception publishes nothing, and
`exist_ok=True` replaces the old folder in one step, once the new one is complete.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from penstock.compat.unused import refuse_overrides, say_unused
from penstock.errors import ConfigError
from penstock.formats import create
from penstock.formats.shards.find_index import own_files
from penstock.formats.shards.index_json import INDEX_NAME
from penstock.formats.shards.side import SIDE_NAME
from penstock.store.place import Place, fixed_place, is_url, local_path
from penstock.store.put import aborting
from penstock.types import Sample

Where = str | os.PathLike[str]
Out = Where | tuple[Where, Where]

_COPY_BYTES = 1 << 24
_UNUSED: dict[str, Any] = {"progress_bar": False, "max_workers": None, "retry": 2}
"""Arguments without effect → what the original does by default."""
_OWN = ("exist_ok", "side_file")
_NEVER_CALLED = (
    "encode_sample", "encode_joint_shard", "encode_split_shard", "flush_shard", "get_config", "cancel_future_jobs",
    "exception_callback", "_hash", "_name_next_shard", "_process_file", "_reset_cache", "_write_index",
)  # fmt: skip
"""Methods by which the original's writers make shards."""


class Writer:
    """Base class with the methods of all the original's writers.

    Attributes:
        local: folder of the dataset; None if it is only written to `remote`.
        remote: URL or folder to which the dataset is uploaded, or None.
    """

    def __init__(
        self, kind: str, out: Out, options: Mapping[str, Any], keep_local: bool, more: Mapping[str, Any]
    ) -> None:
        refuse_overrides(type(self), Writer, _NEVER_CALLED, "Change samples before write()")
        unknown = sorted(set(more) - {*_UNUSED, *_OWN})
        if unknown:
            expected = ", ".join((*_UNUSED, *_OWN))
            raise ConfigError("Invalid Writer argument: unknown name", found=unknown[0], expected=expected)
        unused = {name: more[name] for name in _UNUSED if name in more}
        say_unused(type(self).__name__, "shards are uploaded as they fill, and the store retries", unused, _UNUSED)
        local, remote = _local_and_remote(out)
        # Without a wish for a local copy, samples go to the remote folder at once.
        is_kept = remote is None or (keep_local and local != remote)
        self._local = fixed_place(local_path(local, "the local folder of a writer")) if is_kept else None
        self._remote = None if remote is None else fixed_place(remote)
        self.local = local_path(local, "the local folder of a writer") if is_kept else None
        self.remote = remote
        overwrite = bool(more.get("exist_ok", False))
        if self._local is not None and not overwrite:
            if self._local.is_folder() and os.listdir(self._local.path):
                what = f"Directory is not empty: {self.local}"
                raise FileExistsError(f"{what}; exist_ok=True replaces the existing dataset")
            if self._remote is not None:
                _require_free(self._remote)
        self._writer = create(self.local or remote or "", format=kind, overwrite=overwrite, **options)
        self._finished = False
        self._has_side_file = bool(more.get("side_file", True))

    def get_config(self) -> dict[str, Any]:
        """Return the configuration in the index: version, format, columns, compression, hashes and size limit."""
        writer: Any = self._writer
        return dict(writer.layout.config())

    def write(self, sample: Sample) -> None:
        """Add one sample."""
        self._writer.write(sample)

    def finish(self) -> None:
        """Make the dataset visible; in `remote` last, and its index last of all."""
        self._writer.commit()
        self._finished = True
        if not self._has_side_file:
            written = self._local or self._remote
            if written is not None and written.child(SIDE_NAME).exists():
                written.store.delete(written.child(SIDE_NAME).path)
        if self._local is not None and self._remote is not None:
            _copy(self._local, self._remote)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._writer.abort()
        elif not self._finished:
            self.finish()


class MDSWriter(Writer):
    """Writer of MDS datasets.

    Args:
        columns: name → encoding.
        out: directory, URL, or (directory, URL).
        keep_local: with a URL, also keep the directory.
        compression: such as `"zstd:7"`.
        hashes: names of hash algorithms, sorted.
        size_limit: size of a shard in bytes, or as text such as `"64mb"`; None for one shard.
        kwargs: `exist_ok`; `side_file=False` writes no `.penstock` file with counts and digests next to the index, for
            directories that are compared file by file; `progress_bar`, `max_workers` and `retry` are ignored, with a
            log message.

    Raises:
        FileExistsError: the directory isn't empty.
        ConfigError: an argument is invalid, or a subclass overrides a method that is never called.

    Examples:
        >>> from penstock.compat.streaming import LocalDataset, MDSWriter
        >>> columns = {"id": "int", "text": "str"}
        >>> with MDSWriter(columns=columns, out="mds", compression="zstd:3", hashes=["sha1"]) as writer:
        ...     for number in range(3):
        ...         writer.write({"id": number, "text": f"sample {number}"})
        >>> LocalDataset("mds")[2]
        {'id': 2, 'text': 'sample 2'}
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        options = _options(columns, compression, hashes, size_limit)
        super().__init__("mds", out, options, keep_local, kwargs)


class XSVWriter(Writer):
    """Writer of text with a separator. Arguments as for `MDSWriter`, and `separator` and `newline`.

    Args:
        separator: text between columns.
        newline: text after each row.

    Examples:
        >>> from penstock.compat.streaming import LocalDataset, XSVWriter
        >>> with XSVWriter(columns={"id": "int", "text": "str"}, separator="|", out="xsv") as writer:
        ...     writer.write({"id": 1, "text": "one"})
        >>> LocalDataset("xsv")[0]
        {'id': 1, 'text': 'one'}
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        separator: str,
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        newline: str = "\n",
        **kwargs: Any,
    ) -> None:
        options = _options(columns, compression, hashes, size_limit)
        super().__init__("xsv", out, {**options, "separator": separator, "newline": newline}, keep_local, kwargs)


class _TextWriter(Writer):
    kind: str

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        newline: str = "\n",
        **kwargs: Any,
    ) -> None:
        options = _options(columns, compression, hashes, size_limit)
        super().__init__(self.kind, out, {**options, "newline": newline}, keep_local, kwargs)


class CSVWriter(_TextWriter):
    """Writer of CSV datasets. Arguments as for `XSVWriter`, without the separator.

    Examples:
        >>> from penstock.compat.streaming import CSVWriter, LocalDataset
        >>> with CSVWriter(columns={"id": "int", "text": "str"}, out="csv") as writer:
        ...     writer.write({"id": 1, "text": "one"})
        >>> LocalDataset("csv")[0]
        {'id': 1, 'text': 'one'}
    """

    kind = "csv"


class TSVWriter(_TextWriter):
    """Writer of TSV datasets. Arguments as for `XSVWriter`, without the separator.

    Examples:
        >>> from penstock.compat.streaming import LocalDataset, TSVWriter
        >>> with TSVWriter(columns={"id": "int", "text": "str"}, out="tsv") as writer:
        ...     writer.write({"id": 1, "text": "one"})
        >>> LocalDataset("tsv")[0]
        {'id': 1, 'text': 'one'}
    """

    kind = "tsv"


class JSONWriter(_TextWriter):
    """Writer of JSON Lines datasets. Arguments as for `XSVWriter`, without the separator.

    Examples:
        >>> from penstock.compat.streaming import JSONWriter, LocalDataset
        >>> with JSONWriter(columns={"id": "int", "text": "str"}, out="json") as writer:
        ...     writer.write({"id": 1, "text": "one"})
        >>> LocalDataset("json")[0]
        {'id': 1, 'text': 'one'}
    """

    kind = "json-shards"


def _options(
    columns: Mapping[str, str], compression: str | None, hashes: Sequence[str] | None, size_limit: int | str | None
) -> dict[str, Any]:
    return {
        "columns": dict(columns),
        "compression": compression or None,
        "hashes": list(hashes or []),
        "size_limit": size_limit or None,
    }


def _local_and_remote(out: Out) -> tuple[str, str | None]:
    if not isinstance(out, (str, os.PathLike)):
        local, remote = (os.fspath(one) for one in out)
        if not local or not remote:  # the working folder would go to the remote one, with all in it
            raise ConfigError("one of the folders of a writer is empty", found=repr((local, remote)))
        return local, remote
    one = os.fspath(out)
    return one, one if is_url(one) else None


def _require_free(target: Place) -> None:
    """Refuse to write over a dataset that is there; raises `ConfigError`."""
    if target.child(INDEX_NAME).exists():
        raise ConfigError("the output exists", path=target.path, hint="Choose another one; exist_ok=True replaces it")


def _copy(folder: Place, target: Place) -> None:
    """Copy the files of a finished dataset into another store, one after another, the index last.

    Files of a replaced dataset that its index lists, and that the new dataset doesn't have, are removed.
    """
    before = own_files(target.store, target.path) if target.child(INDEX_NAME).exists() else []
    names = sorted(os.listdir(folder.path), key=lambda name: (name == INDEX_NAME, name))
    for name in names:
        with aborting(target.store.stage(target.child(name).path, overwrite=True)) as staged:
            with open(folder.child(name).path, "rb") as file:
                while chunk := file.read(_COPY_BYTES):
                    staged.write(chunk)
            staged.commit()
    for name in before:
        if name not in names and target.child(name).exists():
            target.store.delete(target.child(name).path)


__all__ = ["CSVWriter", "JSONWriter", "MDSWriter", "TSVWriter", "Writer", "XSVWriter"]
