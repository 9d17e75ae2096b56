"""Helpers for format plug-ins.

Plug-ins also use `penstock.abc`, `penstock.types` and `penstock.errors`.

For a dataset of one file with a side file next to it:

- `OutputFile`: the file while it is written. `known_manifest`, `fingerprint_of`, `check_side`: its side file's
  contents, its fingerprint, and its findings.
- `finding_of`: converts an error of opening to a finding.
- `as_index`, `as_indices`, `stack`: indices as `Source` requires, and samples as a batch.
- `recipe_of`: the result of a source's `recipe()`, from which it can be opened again.
- `line`, `tree`: the output of `print(source)`.
- `refuse_unknown`: raises an error for unknown options of a writer.

These names are stable; the rest of `penstock.formats` and `penstock.store` may change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from penstock._arrays import as_index, as_indices, byte_view, stack
from penstock._secrets import redact
from penstock._tree import line, tree
from penstock.abc import Store
from penstock.errors import ConfigError, PenstockError
from penstock.formats._findings import Problem
from penstock.formats._manifest import DATA, ClaimedFile, FileDigests, data_fingerprint, side_path
from penstock.formats._side_checks import check_files, check_side_file
from penstock.formats._writers import require_open
from penstock.store.base import adapted
from penstock.store.outputs import output_path
from penstock.store.side_file import file_facts, read_side_file
from penstock.types import Buffer, Depth, Finding, Manifest, OpenOptions

__all__ = [
    "OutputFile",
    "as_index",
    "as_indices",
    "check_side",
    "finding_of",
    "fingerprint_of",
    "known_manifest",
    "line",
    "recipe_of",
    "refuse_unknown",
    "stack",
    "tree",
]

_FLUSH_BYTES = 1 << 20
_OF_READING = ("read", "image", "trust_parts", "refuse_late")


class OutputFile:
    r"""File of a dataset while it is written.

    It is claimed for one writer, hidden until `commit`, and digested on the way.

    Memory: 1 MiB, in which small writes are joined.

    Args:
        store: store of the file.
        path: path of the file; a link is followed.
        overwrite: replace an existing dataset.

    Attributes:
        path: path of the file.
        size_bytes: bytes written so far.
        is_open: True until `commit` or `abort`.

    Raises:
        ConfigError: the path exists and `overwrite` is false, or it may not be replaced.
        PrepareError: another writer holds it.

    Examples:
        >>> from penstock.formats.kit import OutputFile
        >>> from penstock.store import LocalStore
        >>> file = OutputFile(LocalStore(), "numbers.dat", overwrite=False)
        >>> file.write(b"\x01\x02\x03")
        >>> manifest = file.commit("numbers", num_samples=3, tool="numbers 1.0")
        >>> manifest.size_bytes, manifest.num_samples
        (3, 3)
    """

    def __init__(self, store: Store, path: str, *, overwrite: bool) -> None:
        store = adapted(store)
        self.path = output_path(store, path)
        self.size_bytes = 0
        self.is_open = True
        self._file = ClaimedFile(store, self.path, overwrite=overwrite)
        self._staged = self._file.staged
        self._digests = FileDigests(self._staged)
        self._pending = bytearray()

    def require_open(self) -> None:
        """Raise `ConfigError` after `commit` or `abort`."""
        require_open(self.is_open, self.path)

    def write(self, data: Buffer) -> None:
        """Append bytes. If that fails, the file is discarded."""
        self.require_open()
        view = byte_view(data)
        self.size_bytes += len(view)
        if len(self._pending) + len(view) < _FLUSH_BYTES:
            self._pending += view
            return
        try:
            self._flush()
            self._staged.write(view)
        except BaseException:
            self.abort()
            raise
        self._digests.update(view)

    def commit(self, format_name: str, num_samples: int, *, tool: str = "", **facts: Any) -> Manifest:
        """Make the side file and then the file visible, durably.

        Args:
            format_name: name of the format.
            num_samples: number of samples in the file.
            tool: name and version of the writing tool.
            facts: further fields of `penstock.types.Manifest`.

        Returns:
            The contents of the side file.
        """
        self.require_open()
        self.is_open = False
        try:
            self._flush()
            digests, binding = self._digests.finish()
            own = {"block_digests": {DATA: digests}, "binding": binding, "size_bytes": self.size_bytes}
            manifest = Manifest(format=format_name, num_samples=num_samples, tool=tool, **own, **facts)
            self._file.commit(manifest)
        finally:
            self._file.abort()
        return manifest

    def abort(self) -> None:
        """Discard everything written; after `commit` it does nothing."""
        self.is_open = False
        self._pending.clear()
        self._file.abort()

    def _flush(self) -> None:
        self._staged.write(self._pending)
        self._digests.update(self._pending)
        self._pending.clear()


def known_manifest(store: Store, path: str) -> Manifest | None:
    """Return the contents of a file's side file; None if there is none or it doesn't belong to this data.

    Args:
        store: store of the file.
        path: path of the data file.

    Examples:
        >>> from penstock.formats.kit import known_manifest
        >>> from penstock.store import LocalStore
        >>> known_manifest(LocalStore(), "corpus.pbin").num_samples
        6
        >>> known_manifest(LocalStore(), "docs.jsonl") is None
        True
    """
    return read_side_file(adapted(store), side_path(path), path)


def fingerprint_of(store: Store, path: str, format_name: str, index: bytes) -> str:
    """Return the fingerprint of a data file: from its side file if possible, else from a few reads.

    Args:
        store: store of the file.
        path: path of the data file.
        format_name: name of the format.
        index: bytes of the format's own index.

    Examples:
        >>> from penstock.formats.kit import fingerprint_of
        >>> from penstock.store import LocalStore
        >>> fingerprint = fingerprint_of(LocalStore(), "docs.jsonl", "lines", b"")
        >>> len(fingerprint)
        32
    """
    return data_fingerprint(adapted(store), format_name, index, path, known_manifest(store, path))


def check_side(store: Store, path: str, format_name: str, num_samples: int | None, depth: Depth) -> list[Finding]:
    """Return findings for contradictions between a file and its side file.

    Depth `"full"` reads every byte.

    Args:
        store: store of the file.
        path: path of the data file.
        format_name: first part of the codes.
        num_samples: number of samples in the file; None if unknown.
        depth: depth of the check.

    Examples:
        >>> from penstock.formats.kit import check_side
        >>> from penstock.store import LocalStore
        >>> check_side(LocalStore(), "corpus.pbin", "pbin", 6, "full")
        []
    """
    store = adapted(store)
    facts = partial(file_facts, store, path, format_name, num_samples=num_samples)
    manifest, findings = check_side_file(format_name, store, path, side_path(path), facts)
    if depth == "full" and manifest is not None:
        findings += check_files(store, format_name, side_path(path), manifest, {DATA: path})
    return findings


def finding_of(format_name: str, error: PenstockError) -> Finding:
    """Convert an error to a finding with the code `<format>.<kind of error>`.

    Args:
        format_name: first part of the code.
        error: error raised while opening or reading.

    Examples:
        >>> from penstock.errors import Truncated
        >>> from penstock.formats.kit import finding_of
        >>> finding_of("numbers", Truncated("the file is too short", path="numbers.dat", offset_bytes=3)).code
        'numbers.truncated'
    """
    return Problem.of_error(f"{format_name}.{error.code}", error).finding()


def recipe_of(format_name: str, path: str, options: OpenOptions | None = None) -> dict[str, Any]:
    """Return the recipe of a dataset.

    It contains `"kind": "open"`, format, path and the options that were passed. Written to a file, it is a recipe for
    every verb.

    Args:
        format_name: name of the format.
        path: path of the dataset.
        options: options passed to `open`; those that don't change samples are left out.

    Examples:
        >>> from penstock.formats.kit import recipe_of
        >>> from penstock.types import OpenOptions
        >>> recipe_of("numbers", "/data/numbers.dat", OpenOptions(eos_id=0))
        {'kind': 'open', 'format': 'numbers', 'path': '/data/numbers.dat', 'eos_id': 0}
    """
    plain, given = asdict(OpenOptions()), asdict(options or OpenOptions())
    kept = {name: value for name, value in given.items() if name not in _OF_READING and value != plain[name]}
    kept |= {"columns": list(kept["columns"])} if "columns" in kept else {}
    return {"kind": "open", "format": format_name, "path": redact(path), **kept}


def refuse_unknown(path: str, options: Mapping[str, Any], known: Collection[str] = ()) -> None:
    """Raise `ConfigError` if an option isn't among the known ones.

    Args:
        path: path of the dataset, for the error.
        options: options passed to the writer.
        known: names of the known options.

    Examples:
        >>> from penstock.formats.kit import refuse_unknown
        >>> refuse_unknown("numbers.dat", {"width": 4}, known=["width"])
        >>> refuse_unknown("numbers.dat", {"widht": 4}, known=["width"])
        Traceback (most recent call last):
        ...
        penstock.errors.ConfigError: numbers.dat: unknown option widht: expected width
    """
    unknown = sorted(set(options) - set(known))
    if unknown:
        what = f"unknown option {', '.join(unknown)}"
        raise ConfigError(what, path=path, expected=", ".join(known) or "no option")
