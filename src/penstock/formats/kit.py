"""What a format in a package of its own takes from Penstock besides `penstock.abc`, `penstock.types` and `.errors`.

For a dataset of one file, whose side file stands beside it:

- `OutputFile`: the file while it is written; `known_manifest`, `fingerprint_of`, `check_side`: what its side file says,
  its fingerprint, and its findings.
- `finding_of`: the error of one who opens, as a finding for one who checks.
- `as_index`, `as_indices`, `stack`: indices by the laws of `Source`, and samples as a batch.
- `recipe_of`: what `recipe()` of a source gives, by which it is opened again.
- `line`, `tree`: what `print(source)` shows.
- `refuse_unknown`: options that a writer does not have.

These names stay; what else lies in `penstock.formats` and `penstock.store` may change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from penstock._buffers import byte_view
from penstock._columns import stack
from penstock._index import as_index, as_indices
from penstock._secrets import redact
from penstock._tree import line, tree
from penstock.abc import Store
from penstock.errors import ConfigError, PenstockError
from penstock.formats._manifest import DATA, FileDigests, commit_with_side_file, data_fingerprint, side_path
from penstock.formats._side_checks import check_files, check_side_file
from penstock.formats._writers import require_open
from penstock.store.outputs import claim_files, output_path
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
    """The file of a dataset while it is written: claimed for one writer, hidden until `commit`, digested on the way.

    Memory: 1 MiB, in which small writes are joined.

    Args:
        store: where it will be.
        path: its path; a link is followed.
        overwrite: replace the dataset that is there.

    Attributes:
        path: where it will be.
        size_bytes: written so far.
        is_open: until `commit` or `abort`.

    Raises:
        ConfigError: something stands there and `overwrite` is false, or it may not be replaced.
        PrepareError: another writer has it.
    """

    def __init__(self, store: Store, path: str, *, overwrite: bool) -> None:
        self.path = output_path(store, path)
        self.size_bytes = 0
        self.is_open = True
        self._store = store
        self._overwrite = overwrite
        self._claim = claim_files(store, self.path, side=side_path(self.path))
        try:
            self._staged = store.stage(self.path, overwrite=overwrite)
        except BaseException:
            self._claim.release()
            raise
        self._digests = FileDigests(self._staged)
        self._pending = bytearray()

    def require_open(self) -> None:
        """Raise `ConfigError` after `commit` or `abort`."""
        require_open(self.is_open, self.path)

    def write(self, data: Buffer) -> None:
        """Append; where that fails, nobody may go on with the file, and it is dropped."""
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
        """Make side file and file visible, durably; the file comes last.

        Args:
            format_name: of the format.
            num_samples: in the file.
            tool: name and version of what wrote it.
            facts: further fields of `penstock.types.Manifest`.
        """
        self.require_open()
        self.is_open = False
        try:
            self._flush()
            digests, binding = self._digests.finish()
            own = {"block_digests": {DATA: digests}, "binding": binding, "size_bytes": self.size_bytes}
            manifest = Manifest(format=format_name, num_samples=num_samples, tool=tool, **own, **facts)
            commit_with_side_file(self._store, self._staged, side_path(self.path), manifest, overwrite=self._overwrite)
        except BaseException:
            self._staged.abort()
            raise
        finally:
            self._claim.release()
        return manifest

    def abort(self) -> None:
        """Leave nothing; after `commit` it does nothing."""
        self.is_open = False
        self._pending.clear()
        self._staged.abort()
        self._claim.release()

    def _flush(self) -> None:
        self._staged.write(self._pending)
        self._digests.update(self._pending)
        self._pending.clear()


def known_manifest(store: Store, path: str) -> Manifest | None:
    """What the side file of a file says; None where there is none, or where it does not belong to these data."""
    return read_side_file(store, side_path(path), path)


def fingerprint_of(store: Store, path: str, format_name: str, index: bytes) -> str:
    """32 hex digits: of the format's own index or header, and of the data; by the side file, else in a few reads."""
    return data_fingerprint(store, format_name, index, path, known_manifest(store, path))


def check_side(store: Store, path: str, format_name: str, num_samples: int | None, depth: Depth) -> list[Finding]:
    """Findings where a file contradicts its side file; `full` reads every byte.

    Args:
        store: where it is.
        path: the file.
        format_name: the first part of codes.
        num_samples: in the file; None where that is not known.
        depth: of the check.
    """
    facts = partial(file_facts, store, path, format_name, num_samples=num_samples)
    manifest, findings = check_side_file(format_name, store, path, side_path(path), facts)
    if depth == "full" and manifest is not None:
        findings += check_files(store, format_name, side_path(path), manifest, {DATA: path})
    return findings


def finding_of(format_name: str, error: PenstockError) -> Finding:
    """What an error says, as a finding with the code `<format>.<kind of error>`."""
    found, expected = (None if value is None else str(value) for value in (error.found, error.expected))
    what = error.what if found is None else f"{error.what}: {found}"
    return Finding(
        f"{format_name}.{error.code}", "error", error.path or "", error.offset_bytes, what, expected, error.hint
    )


def recipe_of(format_name: str, path: str, options: OpenOptions | None = None) -> dict[str, Any]:
    """`{"kind": "open", "format", "path"}` and the options that were given: written to a file, a recipe for every verb.

    Args:
        format_name: of the format.
        path: of the dataset.
        options: as `open` got them; those that change no sample are left out.
    """
    plain, given = asdict(OpenOptions()), asdict(options or OpenOptions())
    kept = {name: value for name, value in given.items() if name not in _OF_READING and value != plain[name]}
    kept |= {"columns": list(kept["columns"])} if "columns" in kept else {}
    return {"kind": "open", "format": format_name, "path": redact(path), **kept}


def refuse_unknown(path: str, options: Mapping[str, Any], known: Collection[str] = ()) -> None:
    """Raise `ConfigError` for an option that is not among the known ones."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        what = f"unknown option {', '.join(unknown)}"
        raise ConfigError(what, path=path, expected=", ".join(known) or "no option")
