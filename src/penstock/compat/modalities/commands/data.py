"""Commands of `modalities data …` on whole files: same arguments, same bytes, without its data losses.

Each function has the name and the arguments of Modalities' own, and returns a summary, with the differences from what
Modalities would have done. Memory: 48 MiB of documents, 64 MiB to digest a packed file, 8 bytes per document, 16 bytes
per line, and 4 bytes per document or line for a permutation of Modalities.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from penstock.compat.modalities.embedded import EmbeddedStreamData, write_index
from penstock.compat.unused import say_unused
from penstock.engine.options import Counter, Progress, RunOptions
from penstock.engine.rows import StoredRows
from penstock.engine.status import sweep
from penstock.errors import ConfigError, NotFound, PenstockError
from penstock.formats import files_at, get_format
from penstock.formats.jsonl.build import IndexedLines, index_path_for
from penstock.formats.jsonl.index import load_lines
from penstock.order.compat.modalities import numpy_list_shuffle, python_shuffle
from penstock.reshape.merge import merge
from penstock.reshape.outputs import Output
from penstock.reshape.reorder import TableOrder, reordered
from penstock.reshape.rows import ChainedRows, LineRows, open_rows
from penstock.reshape.shuffle import write_in_order
from penstock.reshape.split import chunk_range, require_chunk
from penstock.store.exclude_list import require_no_list
from penstock.store.local import LocalStore
from penstock.store.outputs import claimed, output_path, require_other
from penstock.store.place import Place, local_path, place_of, same_file
from penstock.store.put import aborting
from penstock.types import IntArray, OpenOptions


class FileExistencePolicy(Enum):
    """Policy for existing outputs.

    Examples:
        >>> from pathlib import Path
        >>> from penstock.compat.modalities import FileExistencePolicy, create_raw_data_index
        >>> done = create_raw_data_index(Path("docs.jsonl"))
        >>> done = create_raw_data_index(Path("docs.jsonl"), file_existence_policy=FileExistencePolicy.OVERRIDE)
        >>> Path("docs.idx").exists()
        True
    """

    SKIP = "skip"
    ERROR = "error"
    OVERRIDE = "override"


POLICIES = tuple(one.value for one in FileExistencePolicy)

_MODALITIES = "Modalities files"
_MAX_SEED = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a command.

    Attributes:
        path: the output.
        summary: one line for users.
        differences: what Modalities would have done differently, one sentence each.
        notes: further remarks.
    """

    path: str
    summary: str
    differences: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])


# --- shared by all commands ------------------------------------------------------------------------------------------


def _here(path: Path) -> Path:
    """Return a local path; raise `ConfigError` for the URL of another store."""
    return Path(local_path(path, _MODALITIES))


def policy_name(policy: str | Enum) -> str:
    """Return the name of a policy: a string, or the value of our enum or Modalities' own."""
    name = policy.value if isinstance(policy, Enum) else policy
    if name not in POLICIES:
        raise ConfigError("unknown file existence policy", found=name, expected=" | ".join(POLICIES))
    return name


class Target:
    """Output of a command, and what to do if it exists.

    Args:
        path: the output.
        policy: `"skip"`, `"error"` or `"override"`, or the value of an enum.
        require_sound: raises an error if an existing file can't be kept. Modalities keeps any file.
    """

    def __init__(self, path: Path, policy: str | Enum, require_sound: Callable[[Path], None] | None = None) -> None:
        self.path = _here(path)
        self.overwrite = policy_name(policy) == "override"
        self._skips = policy_name(policy) == "skip"
        self._require_sound = require_sound

    def kept(self) -> Done | None:
        """Return the result if an existing output is kept. None: continue, and replace it once the new one is complete.

        Raises:
            ConfigError: the output exists and the policy is `"error"`.
        """
        if self.overwrite or not os.path.lexists(self.path):
            return None
        with contextlib.suppress(PenstockError, OSError):  # another run is active, or there is nothing of ours
            sweep(place_of(self.path))  # left by a run that was killed after its commit
        if not self._skips:
            raise ConfigError(
                "the output exists",
                path=self.path,
                hint="Delete it, choose another one, or pass --file_existence_policy override",
            )
        if self._require_sound is not None:
            self._require_sound(self.path)
        return Done(str(self.path), f"{self.path}: exists and is kept")


def require_sound_pbin(path: Path) -> None:
    """Raise `ConfigError` if a packed file is incomplete."""
    for finding in get_format("pbin").check(LocalStore(), str(path), OpenOptions(), "quick"):
        if finding.severity == "error":
            raise ConfigError(
                "the existing file is not a complete packed file, so it isn't skipped",
                path=path,
                found=finding.found,
                hint="Recreate it: --file_existence_policy override",
            )


def _refuse_same(source: Path, target: Path, *, is_jsonl: bool = False) -> None:
    if same_file(str(source), str(target)):
        raise ConfigError("input and output must be different files", path=target)
    require_other([str(source), *files_at("jsonl" if is_jsonl else "pbin", str(source))], str(target))


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise NotFound("no such file", path=path, hint="Check the path")


# --- create_raw_index ----------------------------------------------------------------------------------------------


def create_raw_data_index(
    src_path: Path,
    index_path: Path | None = None,
    file_existence_policy: str | Enum = "error",
    *,
    progress: Progress | None = None,
) -> Done:
    """Index a JSONL file.

    By default the index is next to the file, with the last suffix replaced by `.idx`.

    Raises:
        FaultyLine: a line isn't JSON; no index is written.
        ConfigError: the index exists, or is the file itself.

    Examples:
        >>> from pathlib import Path
        >>> from penstock.compat.modalities import LargeFileLinesReader, create_raw_data_index
        >>> done = create_raw_data_index(Path("docs.jsonl"))
        >>> Path(done.path).name
        'docs.idx'
        >>> len(LargeFileLinesReader("docs.jsonl"))
        6
    """
    src_path = _here(src_path)
    path = Path(index_path_for(str(src_path))) if index_path is None else index_path

    def require_sound(index: Path) -> None:
        load_lines(LocalStore(), str(src_path), str(index))

    target = Target(path, file_existence_policy, require_sound if src_path.exists() else None)
    _refuse_same(src_path, target.path)
    if kept := target.kept():
        return kept
    report = write_index(
        src_path,
        target.path,
        overwrite=target.overwrite,
        progress=None if progress is None else lambda done: progress(done, "bytes"),
    )
    return Done(str(target.path), f"{target.path}: {report.num_lines:,} lines of {report.size_bytes:,} bytes")


# --- merge_packed_data ---------------------------------------------------------------------------------------------


class TargetExists(ConfigError, FileExistsError):
    """The target exists: also the original's `FileExistsError`."""


def merge_packed_data_files(src_paths: Sequence[Path], target_path: Path, *, progress: Progress | None = None) -> Done:
    """Merge packed files in the order given; from a directory all `*.pbin`, in byte order of their paths.

    Raises:
        ConfigError: there is nothing to merge, or token widths or tokenizers differ.
        TargetExists: the target exists.
        FormatError: a file is damaged.

    Examples:
        >>> from pathlib import Path
        >>> from penstock.compat.modalities import PackedMemMapDatasetBase, merge_packed_data_files
        >>> done = merge_packed_data_files([Path("corpus.pbin"), Path("code.pbin")], Path("all.pbin"))
        >>> len(PackedMemMapDatasetBase("all.pbin", "input_ids"))
        10
    """
    src_paths, target_path = [_here(path) for path in src_paths], _here(target_path)
    if os.path.lexists(target_path):
        raise TargetExists("the output exists", path=target_path, hint="Delete it, or choose another one")
    files = [file for path in src_paths for file in _packed_files(path)]
    if not files:
        raise ConfigError("no packed files in this folder", path=src_paths[0] if src_paths else None, expected="*.pbin")
    report = merge(files, target_path, to="pbin", format="pbin", progress=progress)
    done = Done(str(target_path), f"{target_path}: {report.output.samples:,} documents from {len(files)} files")
    wrong = sum(count for _, count in report.inputs[1:])
    if wrong:
        done.differences.append(
            f"the index is right; Modalities would have written {wrong:,} of its {report.output.samples:,} "
            "documents 12 bytes too low for each preceding file"
        )
    if any(path.is_dir() for path in src_paths):
        done.differences.append("files in a folder are read in path order, not in file system order")
    return done


def join_embedded_stream_data(
    stream_data: Sequence[EmbeddedStreamData], target_file: Path, chunk_size: int = 2048
) -> None:
    """Join open packed files. `chunk_size` has no effect, which is logged.

    Raises:
        TargetExists: the target exists.
        ConfigError: different token widths.
    """
    given = {"chunk_size": chunk_size}
    say_unused("join_embedded_stream_data", "files are copied in large pieces", given, {"chunk_size": 2048})
    merge_packed_data_files([Path(one.path) for one in stream_data], target_file)


def _packed_files(path: Path) -> Iterable[Path]:
    if not path.is_dir():
        return [path]
    return [Path(file) for file in LocalStore().list(str(path)) if file.endswith(".pbin") and Path(file).is_file()]


# --- shuffled files and chunks -------------------------------------------------------------------------------------


class _Files(Target):
    """The files that a command reads and writes: packed files, or JSONL files without an index or a side file."""

    def __init__(self, target: Path, policy: str | Enum, progress: Progress | None, *, is_jsonl: bool) -> None:
        super().__init__(target, policy, None if is_jsonl else require_sound_pbin)
        self.progress = progress
        self.is_jsonl = is_jsonl
        self.noun = "lines" if is_jsonl else "documents"

    def open(self, path: Path) -> tuple[StoredRows, bool]:
        """Open a file; also return whether its last line lacks a line end."""
        if not self.is_jsonl:
            return open_rows(path, format="pbin"), False
        _require_file(path)
        store = LocalStore()
        require_no_list(store, f"{path}.penstock", "this command writes all lines")
        size_bytes = store.size(str(path))
        runs = IndexedLines(store, str(path), size_bytes, validate=False)
        lines = np.concatenate([np.empty((0, 2), np.int64), *runs])  # blank lines too
        unended = len(lines) > 0 and int(lines[-1].sum()) == size_bytes
        return LineRows(lines, Place(store, str(path))), unended

    def write(
        self, rows: StoredRows, table: IntArray, inputs: Sequence[StoredRows], command: str, **made_by: int
    ) -> int:
        """Write the rows in the order of a table, and return their number."""
        if not self.is_jsonl:
            output = Output(place_of(self.path), "pbin")
            options = RunOptions(overwrite=self.overwrite, progress=self.progress)
            order = TableOrder(table) if len(rows) else None
            made: dict[str, Any] = {"command": f"modalities data {command}", **made_by}
            return write_in_order(rows, order, inputs, output, made, options).samples
        counter, store = Counter(len(rows), self.progress), LocalStore()
        path = output_path(store, str(self.path))
        with claimed(store, path), aborting(store.stage(path, overwrite=self.overwrite)) as staged:
            for data, lengths in reordered(rows, TableOrder(table), output=Place(store, path)):
                staged.write(data)
                counter.add(len(lengths))
            staged.commit()
        return len(rows)

    def done(self, written: int, how: str, unended: Sequence[Path]) -> Done:
        done = Done(str(self.path), f"{self.path}: {written:,} {self.noun}, {how}")
        if unended:
            names = ", ".join(file.name for file in unended[:3]) + (" and others" if len(unended) > 3 else "")
            done.differences.append(
                f"the last line of {names} had no line end; one was added (Modalities would have joined it to the next)"
            )
        return done


def _shuffled(files: _Files, source: Path, seed: int | None) -> Done:
    source = _here(source)
    _refuse_same(source, files.path, is_jsonl=files.is_jsonl)
    if kept := files.kept():
        return kept
    used = secrets.randbits(32) if seed is None else seed
    said = "" if seed is not None else f", seed {used} (random; pass it to get the same order again)"
    rows, unended = files.open(source)
    written = files.write(rows, python_shuffle(len(rows), used), [rows], "shuffle_tokenized_data", seed=used)
    return files.done(written, f"shuffled{said}", [source] if unended else [])


def _shuffled_chunk(
    files: _Files, sources: Sequence[Path], chunk_id: int, num_chunks: int, global_seed: int | None
) -> Done:
    sources = [_here(path) for path in sources]
    require_chunk(chunk_id, num_chunks)
    if kept := files.kept():
        return kept
    for source in sources:
        _refuse_same(source, files.path, is_jsonl=files.is_jsonl)
    opened = [files.open(path) for path in sources]
    inputs = [rows for rows, _ in opened]
    ranges = [chunk_range(len(rows), chunk_id, num_chunks) for rows in inputs]
    rows = _joined(inputs, ranges, f"chunk {chunk_id} of {num_chunks}", files.path)
    seed = secrets.randbits(32) if global_seed is None else calculate_hashed_seed([str(global_seed), str(chunk_id)])
    said = f" with a random seed ({seed})" if global_seed is None else ""
    table, command = numpy_list_shuffle(len(rows), seed), "create_shuffled_dataset_chunk"
    written = files.write(rows, table, inputs, command, chunk_id=chunk_id, seed=seed)
    both = zip(sources, opened, ranges, strict=True)
    unended = [path for path, (one, is_unended), (_, stop) in both if is_unended and stop == len(one)]
    return files.done(written, f"chunk {chunk_id} of {num_chunks}, shuffled{said}", unended)


def _joined(inputs: Sequence[StoredRows], ranges: Sequence[tuple[int, int]], chunk: str, target: Path) -> ChainedRows:
    if not any(stop > first for first, stop in ranges):
        raise ConfigError(f"{chunk} is empty", path=target, hint="Use fewer chunks")
    for rows in inputs:
        if rows.dtype != inputs[0].dtype:
            raise ConfigError(
                "different token widths",
                path=rows.place.path,
                found=f"{rows.dtype.itemsize} bytes",
                expected=f"{inputs[0].dtype.itemsize} bytes, as in {inputs[0].place.path}",
            )
    return ChainedRows([(rows, *both) for rows, both in zip(inputs, ranges, strict=True)])


# --- shuffle_tokenized_data, shuffle_jsonl_data --------------------------------------------------------------------


def shuffle_tokenized_data(
    input_data_path: Path,
    output_data_path: Path,
    batch_size: int = 100,
    file_existence_policy: str | Enum = "error",
    seed: int | None = None,
    *,
    progress: Progress | None = None,
) -> Done:
    """Write the documents of a packed file in the order of `random.Random(seed).shuffle`.

    `batch_size` doesn't affect the result, as in the original.

    Raises:
        ConfigError: the output exists or is the input, or the batch size is invalid.
        FormatError: the input is damaged, for example by Modalities' own merge.

    Examples:
        >>> from pathlib import Path
        >>> from penstock.compat.modalities import PackedMemMapDatasetBase, shuffle_tokenized_data
        >>> done = shuffle_tokenized_data(Path("corpus.pbin"), Path("shuffled.pbin"), seed=1)
        >>> [int(item["input_ids"][0]) for item in PackedMemMapDatasetBase("shuffled.pbin", "input_ids")]
        [301, 401, 601, 101, 501, 201]
    """
    if batch_size < 1:
        raise ConfigError("invalid batch size", found=batch_size, expected="1 or more")
    files = _Files(output_data_path, file_existence_policy, progress, is_jsonl=False)
    return _shuffled(files, input_data_path, seed)


def shuffle_jsonl_data(
    input_data_path: Path,
    output_data_path: Path,
    file_existence_policy: str | Enum = "error",
    seed: int | None = None,
    *,
    progress: Progress | None = None,
) -> Done:
    """Write the lines of a file, unparsed, in the order of `random.Random(seed).shuffle`.

    Raises:
        ConfigError: the output exists or is the input.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> from penstock.compat.modalities import shuffle_jsonl_data
        >>> done = shuffle_jsonl_data(Path("docs.jsonl"), Path("shuffled.jsonl"), seed=1)
        >>> [json.loads(line)["id"] for line in Path("shuffled.jsonl").read_text().splitlines()]
        ['a3', 'a4', 'a6', 'a1', 'a5', 'a2']
    """
    files = _Files(output_data_path, file_existence_policy, progress, is_jsonl=True)
    return _shuffled(files, input_data_path, seed)


def read_file_list(list_path: Path, root: Path, suffix: str) -> list[Path]:
    """Read a list of files: one relative path per line, with its suffix replaced.

    Raises:
        NotFound: the list doesn't exist.
        ConfigError: a line is blank, or its name takes no suffix.
    """
    list_path, root = _here(list_path), _here(root)
    _require_file(list_path)
    files: list[Path] = []
    with list_path.open(encoding="utf-8") as file:
        lines = file.readlines()
    for number, line in enumerate(lines, 1):
        try:
            files.append(root / Path(line.strip()).with_suffix(suffix))
        except ValueError:
            raise ConfigError(
                f"line {number} of the list is not a file", path=list_path, found=repr(line), hint="Remove the line"
            ) from None
    return files


def create_shuffled_dataset_chunk(
    file_path_list: Sequence[Path],
    output_chunk_file_path: Path,
    chunk_id: int,
    num_chunks: int,
    file_existence_policy: str | Enum = "error",
    global_seed: int | None = None,
    *,
    progress: Progress | None = None,
) -> Done:
    """Write one chunk of each packed file, shuffled together by `numpy.random.default_rng(...).shuffle`.

    Raises:
        ConfigError: the chunk doesn't exist or is empty, token widths differ, or the output exists or is an input.
        FormatError: a file is damaged.

    Examples:
        >>> from pathlib import Path
        >>> from penstock.compat.modalities import PackedMemMapDatasetBase, create_shuffled_dataset_chunk
        >>> files = [Path("corpus.pbin"), Path("code.pbin")]
        >>> done = create_shuffled_dataset_chunk(files, Path("chunk0.pbin"), chunk_id=0, num_chunks=2, global_seed=1)
        >>> len(PackedMemMapDatasetBase("chunk0.pbin", "input_ids"))  # 3 of 6, and 2 of 4
        5
    """
    files = _Files(output_chunk_file_path, file_existence_policy, progress, is_jsonl=False)
    return _shuffled_chunk(files, file_path_list, chunk_id, num_chunks, global_seed)


def create_shuffled_jsonl_dataset_chunk(
    file_path_list: Sequence[Path],
    output_chunk_file_path: Path,
    chunk_id: int,
    num_chunks: int,
    file_existence_policy: str | Enum = "error",
    global_seed: int | None = None,
    *,
    progress: Progress | None = None,
) -> Done:
    """Write one chunk of the lines of each file, shuffled by `numpy.random.default_rng(...).shuffle`.

    Raises:
        ConfigError: the chunk doesn't exist or is empty, or the output exists or is an input.

    Examples:
        >>> from pathlib import Path
        >>> from penstock.compat.modalities import create_shuffled_jsonl_dataset_chunk
        >>> output = Path("chunk0.jsonl")
        >>> done = create_shuffled_jsonl_dataset_chunk(
        ...     [Path("docs.jsonl")], output, chunk_id=0, num_chunks=2, global_seed=1
        ... )
        >>> len(output.read_text().splitlines())
        3
    """
    files = _Files(output_chunk_file_path, file_existence_policy, progress, is_jsonl=True)
    return _shuffled_chunk(files, file_path_list, chunk_id, num_chunks, global_seed)


def calculate_hashed_seed(parts: Sequence[str]) -> int:
    """Return Modalities' seed of several texts: the sum of their SHA-256 digests, modulo 2^32 - 1."""
    return sum(int(hashlib.sha256(part.encode()).hexdigest(), 16) for part in parts) % _MAX_SEED
