"""The commands of `modalities data …` on whole files: same arguments, same bytes, without its ways to lose data.

Each function has the name and the arguments of Modalities' own, and returns a summary in words, with the differences
from what Modalities would have done. Memory: 48 MiB for documents held at once, 64 MiB to digest a packed
file, 8 bytes a document, 16 bytes a line, and 4 bytes a document or line for a permutation of Modalities.
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

import numpy as np

from penstock.compat.modalities.embedded import EmbeddedStreamData
from penstock.compat.modalities.line_index import write_index
from penstock.compat.unused import say_unused
from penstock.engine.options import Counter, Progress, RunOptions
from penstock.engine.status import sweep
from penstock.errors import ConfigError, NotFound, PenstockError
from penstock.formats import files_at, get_format
from penstock.formats.jsonl.build import IndexedLines, index_path_for
from penstock.formats.jsonl.index import load_lines
from penstock.order.compat.modalities import numpy_list_shuffle, python_shuffle
from penstock.reshape.merge import merge
from penstock.reshape.outputs import Output
from penstock.reshape.reorder import TableOrder, reordered
from penstock.reshape.rows import AnyRows, JoinedRows, LineRows, Rows, open_rows
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
    """The result of a command.

    Attributes:
        path: what it made.
        summary: one line for people.
        differences: what Modalities would have done otherwise, each a sentence.
        notes: further remarks.
    """

    path: str
    summary: str
    differences: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])


# --- what all share ------------------------------------------------------------------------------------------------


def _here(path: Path) -> Path:
    """A path of this machine, as the other functions take it; raises `ConfigError` for a URL of another store."""
    return Path(local_path(path, _MODALITIES))


def policy_name(policy: str | Enum) -> str:
    """The word of a policy that is given as such, or as an enum whose value it is: Modalities' own, or ours.

    Raises:
        ConfigError: there is no such policy.
    """
    name = policy.value if isinstance(policy, Enum) else policy
    if name not in POLICIES:
        raise ConfigError("unknown file existence policy", found=name, expected=" | ".join(POLICIES))
    return name


def already_there(path: Path, policy: str, require_sound: Callable[[], None] | None = None) -> Done | None:
    """Apply the policy to an output that exists: None to continue, and replace it once the new one is complete.

    Args:
        path: the output.
        policy: `"skip"`, `"error"` or `"override"`.
        require_sound: called before a file is taken for done; raises where it is not. Modalities takes any file.

    Raises:
        ConfigError: it exists and the policy is `"error"`.
    """
    if policy == "override" or not os.path.lexists(path):
        return None
    with contextlib.suppress(PenstockError, OSError):  # another run is at work there, or nothing of ours is
        sweep(place_of(path))  # what a run left that was killed when this was complete
    if policy == "error":
        raise ConfigError(
            "the output exists",
            path=path,
            hint="Delete it, choose another one, or pass --file_existence_policy override",
        )
    if require_sound is not None:
        require_sound()
    return Done(str(path), f"{path}: exists and is kept")


def require_sound_pbin(path: Path) -> None:
    """Refuse a packed file that is not complete; raises `ConfigError`."""
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


def _drawn(seed: int | None) -> tuple[int, str]:
    """The seed, and what to say of one that was not given."""
    if seed is not None:
        return seed, ""
    drawn = secrets.randbits(32)
    return drawn, f", seed {drawn} (random; pass it to get the same order again)"


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
    target = Path(index_path_for(str(src_path))) if index_path is None else _here(index_path)
    _refuse_same(src_path, target)

    def require_sound() -> None:
        load_lines(LocalStore(), str(src_path), str(target))

    policy = policy_name(file_existence_policy)
    skipped = already_there(target, policy, require_sound if src_path.exists() else None)
    if skipped is not None:
        return skipped
    report = write_index(
        src_path,
        target,
        overwrite=policy == "override",
        progress=None if progress is None else lambda done: progress(done, "bytes"),
    )
    return Done(str(target), f"{target}: {report.num_lines:,} lines of {report.size_bytes:,} bytes")


# --- merge_packed_data ---------------------------------------------------------------------------------------------


class TargetExists(ConfigError, FileExistsError):
    """A target that is there: the original's `FileExistsError`."""


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
    """Join packed files that are open. `chunk_size` changes nothing, which is logged.

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
    input_data_path, output_data_path = _here(input_data_path), _here(output_data_path)
    _refuse_same(input_data_path, output_data_path)
    if batch_size < 1:
        raise ConfigError("invalid batch size", found=batch_size, expected="1 or more")
    policy = policy_name(file_existence_policy)
    skipped = already_there(output_data_path, policy, lambda: require_sound_pbin(output_data_path))
    if skipped is not None:
        return skipped
    used, said = _drawn(seed)
    rows = open_rows(input_data_path, format="pbin")
    order = TableOrder(python_shuffle(len(rows), used)) if len(rows) else None
    output, how = (
        Output(place_of(output_data_path), "pbin"),
        RunOptions(overwrite=policy == "override", progress=progress),
    )
    made_by = {"command": "modalities data shuffle_tokenized_data", "seed": used}
    written = write_in_order(rows, order, [rows], output, made_by, how)
    return Done(written.path, f"{written.path}: {written.samples:,} documents, shuffled{said}")


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
    input_data_path, output_data_path = _here(input_data_path), _here(output_data_path)
    _refuse_same(input_data_path, output_data_path, is_jsonl=True)
    policy = policy_name(file_existence_policy)
    skipped = already_there(output_data_path, policy)
    if skipped is not None:
        return skipped
    used, said = _drawn(seed)
    rows, unended = _all_lines(input_data_path)
    _write_lines(rows, python_shuffle(len(rows), used), output_data_path, policy, progress)
    done = Done(str(output_data_path), f"{output_data_path}: {len(rows):,} lines, shuffled{said}")
    _report_unended(done, [input_data_path] if unended else [])
    return done


def _all_lines(path: Path) -> tuple[LineRows, bool]:
    """All lines of a file, blank ones too, and whether the last one lacks its line end."""
    _require_file(path)
    store = LocalStore()
    require_no_list(store, f"{path}.penstock", "this command writes all lines")
    size_bytes = store.size(str(path))
    runs = IndexedLines(store, str(path), size_bytes, validate=False)
    lines = np.concatenate([np.empty((0, 2), np.int64), *runs])
    unended = len(lines) > 0 and int(lines[-1].sum()) == size_bytes
    return LineRows(lines, Place(store, str(path)), "jsonl"), unended


def _write_lines(rows: Rows, table: IntArray, target: Path, policy: str, progress: Progress | None) -> None:
    """Lines alone, without an index or a side file: what Modalities leaves."""
    counter, store = Counter(len(rows), progress), LocalStore()
    path = output_path(store, str(target))
    with claimed(store, path), aborting(store.stage(path, overwrite=policy == "override")) as staged:
        for data, lengths in reordered(rows, TableOrder(table), output=Place(store, path)):
            staged.write(data)
            counter.add(len(lengths))
        staged.commit()


def _report_unended(done: Done, files: Sequence[Path]) -> None:
    if files:
        names = ", ".join(file.name for file in files[:3]) + (" and others" if len(files) > 3 else "")
        done.differences.append(
            f"the last line of {names} had no line end; one was added (Modalities would have joined it to the next)"
        )


# --- create_shuffled_dataset_chunk, create_shuffled_jsonl_chunk ----------------------------------------------------


def read_file_list(list_path: Path, root: Path, suffix: str) -> list[Path]:
    """The files of a list: one relative path a line, its suffix replaced.

    Raises:
        NotFound: no such list.
        ConfigError: a blank line, or a name that takes no suffix.
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
    policy = policy_name(file_existence_policy)
    file_path_list, output_chunk_file_path = [_here(path) for path in file_path_list], _here(output_chunk_file_path)
    skipped = _chunk_is_there(file_path_list, output_chunk_file_path, chunk_id, num_chunks, policy, require_sound_pbin)
    if skipped is not None:
        return skipped
    opened: list[AnyRows] = [open_rows(path, format="pbin") for path in file_path_list]
    rows = _chunks_of(opened, chunk_id, num_chunks, output_chunk_file_path)
    seed, said = _chunk_seed(global_seed, chunk_id)
    output, how = (
        Output(place_of(output_chunk_file_path), "pbin"),
        RunOptions(overwrite=policy == "override", progress=progress),
    )
    made_by = {"command": "modalities data create_shuffled_dataset_chunk", "chunk_id": chunk_id, "seed": seed}
    order = TableOrder(numpy_list_shuffle(len(rows), seed))
    written = write_in_order(rows, order, opened, output, made_by, how)
    return Done(written.path, f"{written.path}: {written.samples:,} documents, chunk {chunk_id} of {num_chunks}{said}")


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
    policy = policy_name(file_existence_policy)
    file_path_list, output_chunk_file_path = [_here(path) for path in file_path_list], _here(output_chunk_file_path)
    skipped = _chunk_is_there(file_path_list, output_chunk_file_path, chunk_id, num_chunks, policy)
    if skipped is not None:
        return skipped
    opened = [_all_lines(path) for path in file_path_list]
    rows = _chunks_of([one for one, _ in opened], chunk_id, num_chunks, output_chunk_file_path)
    seed, said = _chunk_seed(global_seed, chunk_id)
    _write_lines(rows, numpy_list_shuffle(len(rows), seed), output_chunk_file_path, policy, progress)
    summary = f"{output_chunk_file_path}: {len(rows):,} lines, chunk {chunk_id} of {num_chunks}{said}"
    done = Done(str(output_chunk_file_path), summary)
    takes_last = [chunk_range(len(one), chunk_id, num_chunks)[1] == len(one) for one, _ in opened]
    both = zip(file_path_list, opened, takes_last, strict=True)
    _report_unended(done, [path for path, (_, unended), last in both if unended and last])
    return done


def calculate_hashed_seed(parts: Sequence[str]) -> int:
    """Modalities' seed of several texts: the sum of their SHA-256, modulo 2^32 - 1."""
    return sum(int(hashlib.sha256(part.encode()).hexdigest(), 16) for part in parts) % _MAX_SEED


def _chunk_is_there(
    files: Sequence[Path],
    target: Path,
    chunk_id: int,
    num_chunks: int,
    policy: str,
    require_sound: Callable[[Path], None] | None = None,
) -> Done | None:
    require_chunk(chunk_id, num_chunks)
    skipped = already_there(target, policy, None if require_sound is None else lambda: require_sound(target))
    if skipped is None:
        for file in files:
            _refuse_same(file, target, is_jsonl=require_sound is None)
    return skipped


def _chunks_of(opened: Sequence[Rows], chunk_id: int, num_chunks: int, target: Path) -> JoinedRows:
    parts = [(rows, *chunk_range(len(rows), chunk_id, num_chunks)) for rows in opened]
    if not any(stop > first for _, first, stop in parts):
        raise ConfigError(f"chunk {chunk_id} of {num_chunks} is empty", path=target, hint="Use fewer chunks")
    for rows in opened:
        if rows.dtype != opened[0].dtype:
            raise ConfigError(
                "different token widths",
                path=rows.place.path,
                found=f"{rows.dtype.itemsize} bytes",
                expected=f"{opened[0].dtype.itemsize} bytes, as in {opened[0].place.path}",
            )
    return JoinedRows(parts)


def _chunk_seed(global_seed: int | None, chunk_id: int) -> tuple[int, str]:
    if global_seed is None:
        seed = secrets.randbits(32)
        return seed, f", shuffled with a random seed ({seed})"
    return calculate_hashed_seed([str(global_seed), str(chunk_id)]), ", shuffled"
