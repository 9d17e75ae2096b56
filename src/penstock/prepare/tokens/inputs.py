"""Inputs of `pack`: files, directories and globs become a list of files in a fixed order, each with its digest.

Inputs are cut into tasks: runs of small files, and ranges of large ones. A restart reuses finished tasks; the output
doesn't change. Tasks depend only on names, sizes and kinds of inputs. A large compressed file is one task with several
parts, since it can't be read from the middle.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from stat import S_ISREG
from types import MappingProxyType
from typing import Any, Literal

import xxhash

from penstock._access import excluded_of
from penstock._printable import recordable
from penstock._threads import Pool
from penstock.engine.parts import PartName
from penstock.engine.plan import PlannedInput
from penstock.errors import ConfigError, Corrupt, NotFound, PrepareError
from penstock.formats import SUFFIXES as OF_FORMATS
from penstock.formats import get_format
from penstock.formats._excluded import require_lists_not_recorded, require_no_list_above
from penstock.formats._exclusions import carried_list, excluded_list, stored
from penstock.formats._opening import open_at
from penstock.formats.jsonl.decompress import cut_stream
from penstock.formats.jsonl.scan import line_numbers
from penstock.formats.tables.hf import FORMAT as HF
from penstock.formats.tables.hf import saved_files
from penstock.store._files import named
from penstock.store.exclude_list import BESIDE, NOT_SHOWN, SIDE, Entry, read_list, with_lists
from penstock.store.find import find_files as search
from penstock.store.find import warn_of_links
from penstock.store.fingerprint import FileState, looking_up, sample_fingerprint, states_of
from penstock.store.memory import MemoryStore
from penstock.store.patterns import require_no_lists
from penstock.store.place import Place, absolute, is_url, place_of
from penstock.types import OpenOptions

Compression = Literal["none", "gzip", "zstd"]
InputFormat = Literal["auto", "jsonl", "text", "parquet"]
Kind = Literal["lines", "whole", "parquet", "arrow"]
TABLES: tuple[Kind, ...] = ("parquet", "arrow")

STDIN = "-"

COMPRESSED = (".gz", ".zst")
SUFFIXES = OF_FORMATS["jsonl"]
"""Suffixes of files that are read in directories. A path or a glob can name any file."""

SUFFIXES_OF: Mapping[InputFormat, tuple[str, ...]] = MappingProxyType(
    {"auto": SUFFIXES, "jsonl": SUFFIXES, "text": (".txt", ".txt.gz", ".txt.zst"), "parquet": (".parquet",)}
)
"""The same for each format. With `"auto"`, Parquet files are read in directories without JSONL."""

_PARQUET_MAGIC = b"PAR1"
_OF_FILES = (".jsonl", ".ndjson", ".gz", ".zst", ".txt", ".parquet", ".arrow", ".json")
_ARROW_MAGICS = (b"\xff\xff\xff\xff", b"ARRO")  # of streams and of files; text never begins like this

WHOLE_DIGEST_BYTES = 1 << 32
"""Inputs up to this size in all are hashed completely, larger ones by a sample."""

_MAGIC: dict[Compression, bytes] = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
_OF_SUFFIX: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}
_READ_BYTES = 1 << 20
_HEAD_BYTES = 4
_AT_ONCE = 16
_VERSION = "version:"
_LEAST_TASK_BYTES = 1 << 23
_MOST_TASK_BYTES = 1 << 26
_MOST_TASK_FILES = 1 << 12
_WANTED_TASKS = 64
_EXPANSION = 4  # of compressed text, roughly
NO_STATUS: Mapping[str, os.stat_result] = MappingProxyType({})
NOTHING_KNOWN: Mapping[str, PlannedInput] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file to read.

    Attributes:
        name: path relative to the directory that all inputs share.
        mtime_ns: modification time; 0 for remote files.
        digest: `"xxh3:…"` of all bytes, `"sample:…"` of some, or `"version:…"`, the version in its store; empty until
            `with_digests` computes it.
        kind: how it is read: by lines, as one document, or as a table.
        held: all bytes of a small file that was read for its digest. It isn't opened again.
        excluded: offsets of its excluded lines, rising; `exclude_digest`: that of the exclude list.
        carried: entries of excluded lines that are packed all the same, by line number.
    """

    name: str
    place: Place
    size_bytes: int
    mtime_ns: int
    compression: Compression
    digest: str
    kind: Kind = "lines"
    held: bytes | None = field(default=None, repr=False, compare=False)
    excluded: tuple[int, ...] = field(default=(), repr=False)
    exclude_digest: str | None = None
    carried: tuple[Entry, ...] = field(default=(), repr=False)

    @property
    def path(self) -> str:
        return self.place.path

    @property
    def source(self) -> Place:
        return self.place if self.held is None else Place(MemoryStore({self.path: self.held}), self.path)

    @property
    def digested_whole(self) -> bool:
        return self.digest.startswith(("xxh3:", _VERSION))


@contextlib.contextmanager
def spooled(given: Sequence[str]) -> Generator[Sequence[str]]:
    """Copy standard input into a temporary file `stdin` (in `TMPDIR`) for the block: inputs are read more than once.

    Raises:
        ConfigError: there are other inputs.
        PrepareError: standard input is empty.
    """
    if STDIN not in given:
        yield given
        return
    if len(given) > 1:
        raise ConfigError(
            "standard input can't be combined with other inputs", found=f"{len(given)} inputs", hint="Use only -"
        )
    if sys.stdin is None:
        raise PrepareError("the inputs contain no documents", found="standard input that is closed")
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        path = os.path.join(folder, "stdin")
        try:
            with open(path, "xb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file, _READ_BYTES)
                size_bytes = file.tell()
        except OSError as error:
            raise named(error, path) from None
        if not size_bytes:
            raise PrepareError("the inputs contain no documents", found="nothing on standard input")
        yield [path]


def find_files(
    given: Sequence[str | os.PathLike[str]], input_format: InputFormat = "auto", *, follow_links: bool = False
) -> tuple[list[str], dict[str, os.stat_result]]:
    """Find the files of paths, directories and globs; return their paths in byte order, and known file statuses.

    Directories are searched recursively for names that end in one of `SUFFIXES_OF`, except hidden ones. A dataset saved
    by Hugging Face stands for the files that it lists. Statuses are those of files in searched directories that aren't
    links, and of exclude lists next to them.

    Raises:
        NotFound: nothing exists, or nothing matches.
        ConfigError: a file is listed twice, or isn't a regular file.
        UnsafeData: a link leads out of a searched directory, without `follow_links`.
    """
    statuses: dict[str, os.stat_result] = {}
    kinds = [SUFFIXES_OF[input_format], *([SUFFIXES_OF["parquet"]] if input_format == "auto" else [])]
    require_no_lists(given)
    what = "JSONL" if input_format == "auto" else input_format
    look = functools.partial(search, kinds=kinds, what=what, follow_links=follow_links, statuses=statuses)
    found = (
        path for one in [os.fspath(one) for one in given] for path in _saved(one, input_format) or _looked(one, look)
    )
    paths = sorted(map(absolute, found), key=os.fsencode)
    if not paths:
        raise ConfigError("nothing to pack", hint="Pass JSONL files, folders or globs")
    warn_of_links([os.fspath(one) for one in given])
    for first, second in itertools.pairwise(paths):
        if first == second:
            raise ConfigError("an input is listed twice", path=first, hint="List each file once, or pass its folder")
    known = {
        absolute(path): one for path, one in statuses.items() if S_ISREG(one.st_mode) or path.endswith((BESIDE, SIDE))
    }
    for path in paths:
        if path not in known and not is_url(path) and not os.path.isfile(path):
            raise ConfigError(
                "not a regular file", path=path, hint="Inputs are read more than once, so save it as a file"
            )
    return paths, known


def _looked(given: str, look: Callable[[str], Iterable[str]]) -> Iterable[str]:
    """Return the files that `look` finds. Raise `ConfigError` for an MDS dataset or tar shards."""
    names = [given] if given.endswith(".tar") else []
    try:
        if not names:
            return list(look(given))
    except NotFound:
        names = os.listdir(given) if os.path.isdir(given) else []
    is_tar = any(name.endswith(".tar") for name in names)
    if not is_tar and "index.json" not in names:
        return look(given)
    folder = os.path.dirname(given) or "." if given.endswith(".tar") else given
    hint = (
        f"Convert it first: penstock convert {shlex.quote(folder)} samples.jsonl. Then pack samples.jsonl with --field"
    )
    if is_tar:
        hint += ". Tar shards need `penstock prepare` first"
    kind = "tar shards" if is_tar else "an MDS dataset"
    raise ConfigError("samples can't be packed directly", path=given, found=kind, expected="lines or tables", hint=hint)


def _saved(given: str, input_format: InputFormat) -> list[str]:
    """Return the files of a directory in which Hugging Face `datasets` saved a dataset; none for other inputs."""
    if input_format != "auto" or given == STDIN or os.path.splitext(given)[1] in _OF_FILES:
        return []
    place = place_of(given).bare()
    if not HF.sniff(place.store, place.path).matches:
        return []
    files = saved_files(place.store, place.path)
    if not files:
        raise ConfigError("the dataset is empty", path=given, found="no data files", hint="Pass one with rows")
    return files


def describe_inputs(
    files: Sequence[Place],
    input_format: InputFormat = "auto",
    *,
    whole_files: bool = False,
    known: Mapping[str, PlannedInput] = NOTHING_KNOWN,
    statuses: Mapping[str, os.stat_result] = NO_STATUS,
    hold_bytes: int = 0,
    digests: bool = True,
) -> list[InputFile]:
    """Describe files; up to 4 GiB in all are read for their digests.

    Args:
        files: their places, with absolute paths.
        input_format: `"auto"` recognizes tables by their first bytes, and reads other files as JSONL.
        whole_files: each file is one document.
        known: facts from an earlier plan, by name. Digests of files with equal size and modification time are reused.
        statuses: known file statuses, by path.
        hold_bytes: small files up to this size in all are kept in memory.
        digests: compute digests that need whole files; else see `with_digests`.

    Raises:
        Corrupt: a file doesn't have the expected format or compression.
    """
    states = states_of(files, statuses)
    is_whole = sum(state.size_bytes for state in states) <= WHOLE_DIGEST_BYTES
    describe = functools.partial(
        _describe, input_format=input_format, otherwise="whole" if whole_files else "lines", known=known, whole=is_whole
    )
    given = list(zip(files, _names_below(files), states, strict=True))
    inputs: list[InputFile] = []
    with Pool(_AT_ONCE, "penstock-inputs") as pool:  # beginnings of remote files, a request each
        remote = pool.map(lambda one: describe(*one, hold=False), (one for one in given if not one[0].is_local))
        for file, name, state in given:
            hold = state.size_bytes <= hold_bytes
            inputs.append(describe(file, name, state, hold=hold) if file.is_local else next(remote))
            hold_bytes -= len(inputs[-1].held or b"")
    return with_digests(inputs) if digests else inputs


def _whole_digest(file: Place) -> str:
    hasher, offset_bytes = xxhash.xxh3_128(), 0
    while data := file.store.get(file.path, offset_bytes, _READ_BYTES):
        hasher.update(data)
        offset_bytes += len(data)
    return f"xxh3:{hasher.hexdigest()}"


def with_digests(
    inputs: Sequence[InputFile], run: Callable[[Callable[[Place], str], Iterable[Place]], Iterator[str]] = map
) -> list[InputFile]:
    """Compute missing digests; each is a task of `run`, which reads the file."""
    files = [one.place for one in inputs if not one.digest]
    found = iter(list(run(_whole_digest, files)) if files else ())
    return [one if one.digest else replace(one, digest=next(found)) for one in inputs]


def without_excluded(
    inputs: Sequence[InputFile],
    excludes: Place | Literal[False] | None = None,
    *,
    keep: bool = False,
    known: Collection[str] = (),
) -> list[InputFile]:
    """Apply exclude lists to inputs. Lists next to remote data aren't read.

    Args:
        inputs: all inputs of a run.
        excludes: the list of the only input, instead of the one next to it; False: pack all samples.
        keep: pack excluded lines too, and carry their entries.
        known: files that `find_files` found in directories.

    Raises:
        Corrupt: a list can't be read, or belongs to other data.
        ConfigError: the format of an input doesn't support excluding single rows.
    """
    if excludes is False:
        return list(inputs)
    if excludes is not None:
        if len(inputs) != 1:
            what = "an exclude list applies to one input"
            raise ConfigError(what, path=excludes.path, found=f"{len(inputs)} inputs", hint="Pack each one separately")
        return [_without(inputs[0], excludes, keep=keep)]
    local = [one for one in inputs if one.place.is_local]
    _require_no_remote_lists([one for one in inputs if not one.place.is_local])
    if not local:
        return list(inputs)
    store, here = local[0].place.store, [one.path for one in local]
    listed = with_lists(store, here, known)
    require_lists_not_recorded(store, {*here} - {*listed}, known)
    try:
        require_no_list_above(here, known=known)
    except ConfigError as error:
        what, hint = "these inputs are part of a dataset that has an exclude list", "Remove the excluded samples first"
        folder = Place(store, str(error.found)).folder().path
        raise ConfigError(
            what, path=here[0], found=error.found, hint=f"{hint}: penstock convert {folder} OUT.jsonl"
        ) from None
    return [_without(one, Place(store, listed[one.path]), keep=keep) if one.path in listed else one for one in inputs]


def _require_no_remote_lists(inputs: Sequence[InputFile]) -> None:
    """Raise `ConfigError` if there is an exclude list next to a remote input. Each directory is listed once."""
    stores = {id(one.place.store): one.place.store for one in inputs}
    for store in stores.values():
        found = dict[str, str]()
        with contextlib.suppress(*NOT_SHOWN):
            found = with_lists(store, [one.path for one in inputs if one.place.store is store])
        if found:
            what, path = "there is an exclude list next to this remote input", min(found)
            hint = "Specify it with --excludes URL (excludes=), and pack this input separately"
            raise ConfigError(what, path=path, found=found[path], hint=hint)


def _without(one: InputFile, listed: Place, *, keep: bool) -> InputFile:
    if one.kind != "lines":
        what = "this input has an exclude list, but only JSONL supports excluding single rows"
        hint = "Remove the excluded samples first: penstock convert INPUT OUT.jsonl"
        raise ConfigError(what, path=one.path, found=listed.path, hint=hint)
    options = OpenOptions(excludes=read_list(listed.store, listed.path))
    source = open_at(get_format("jsonl"), one.place.store, one.path, options)
    gone = excluded_of(source)
    if gone is None:
        return one
    digest = excluded_list(source).digest
    if keep:
        lines = line_numbers(stored(source), gone).tolist()
        pairs = zip(lines, carried_list(source).entries, strict=True)
        return replace(one, carried=tuple(replace(entry, index=line) for line, entry in pairs), exclude_digest=digest)
    starts = stored(source).line_ranges()[gone, 0].tolist()
    return replace(one, excluded=tuple(starts), exclude_digest=digest)


def changed_since(inputs: Sequence[InputFile]) -> InputFile | None:
    """Return the first input that was modified or deleted since it was described, except those in memory."""
    read = [one for one in inputs if one.held is None]
    look_up = looking_up([one.place for one in read])
    for one in read:
        try:
            state = look_up(one.place)
        except (NotFound, FileNotFoundError):
            return one
        if (state.size_bytes, state.mtime_ns) != (one.size_bytes, one.mtime_ns):
            return one
        if state.version and one.digest.startswith(_VERSION) and one.digest != _VERSION + state.version:
            return one
    return None


def _names_below(files: Sequence[Place]) -> list[str]:
    """Return paths relative to the directory that all files share, or with their bucket if they share none."""
    paths = [file.path if file.is_local else "/" + file.shown.replace("://", "/", 1) for file in files]
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [recordable(os.path.relpath(path, root)) for path in paths]


def _describe(
    file: Place,
    name: str,
    state: FileState,
    *,
    input_format: InputFormat,
    otherwise: Kind,
    known: Mapping[str, PlannedInput],
    whole: bool,
    hold: bool,
) -> InputFile:
    """Describe a file, which is opened once, unless only a sample of a large file is digested.

    `otherwise` is the kind of a file that isn't a table. With `whole`, digests are computed from all bytes.

    Raises:
        PrepareError: its size has just changed.
    """
    size_bytes, mtime_ns, planned = state.size_bytes, state.mtime_ns, known.get(name)
    same = mtime_ns > 0 and planned is not None and (planned.size_bytes, planned.mtime_ns) == (size_bytes, mtime_ns)
    at_once = whole and not same and not state.version and size_bytes <= _READ_BYTES
    data = file.store.get(file.path) if at_once else file.store.get(file.path, 0, _HEAD_BYTES)
    kind = _find_table(data, file, input_format) or otherwise
    compression = "none" if kind in TABLES else _find_compression(data[:_HEAD_BYTES], file)
    if planned is not None and same:
        digest = planned.digest
    elif state.version:
        digest = _VERSION + state.version
    elif at_once:
        digest = f"xxh3:{xxhash.xxh3_128_hexdigest(data)}"
    elif whole:
        digest = ""
    else:
        digest = f"sample:{sample_fingerprint(file.store, 'input', b'', [('', file.path)])}"
    held = data if hold and at_once and kind not in TABLES else None
    if held is not None and len(held) != size_bytes:
        raise PrepareError(
            "the input changed while it was being read", path=file.path, hint="Don't change inputs during a run"
        )
    return InputFile(name, file, size_bytes, mtime_ns, compression, digest, kind, held)


def _find_table(head: bytes, file: Place, input_format: InputFormat) -> Kind | None:
    """Return the kind of a table; None for other files. Raise `Corrupt` if a Parquet file isn't one."""
    if input_format not in ("auto", "parquet"):
        return None
    if head.startswith(_PARQUET_MAGIC):
        return "parquet"
    if input_format == "auto" and head.startswith(_ARROW_MAGICS):
        return "arrow"
    if input_format == "auto" and not file.path.endswith(SUFFIXES_OF["parquet"]):
        return None
    raise Corrupt(
        "not a Parquet file",
        path=file.path,
        offset_bytes=0,
        found=head[:_HEAD_BYTES].hex(" ") or "an empty file",
        expected=_PARQUET_MAGIC.hex(" "),
    )


def _find_compression(head: bytes, file: Place) -> Compression:
    # JSON never begins with these bytes, so they take precedence over the name.
    for compression, magic in _MAGIC.items():
        if head.startswith(magic):
            return compression
    expected = _OF_SUFFIX.get(PurePosixPath(file.name).suffix)
    if expected is None:
        return "none"
    raise Corrupt(
        f"the name ends in {expected}, but the content doesn't match",
        path=file.path,
        offset_bytes=0,
        found=head.hex(" ") or "an empty file",
        expected=_MAGIC[expected].hex(" "),
    )


# --- tasks


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of input number `file`, or all of it: lines or row groups that begin in `[start_bytes, stop_bytes)`.

    `size_bytes` is the size of the file. A piece of a compressed file is all of it.
    """

    file: int
    place: Place
    start_bytes: int
    stop_bytes: int
    size_bytes: int
    kind: Kind = "lines"
    compression: Compression = "none"

    @property
    def is_whole(self) -> bool:
        return self.start_bytes == 0 and self.stop_bytes == self.size_bytes


@dataclass(frozen=True, slots=True)
class Task:
    """Input that is encoded at once.

    Attributes:
        in_parts: it is one large compressed file, which makes several parts.
        part: the number of the part whose lines `lines` are, or 0; `last`: whether it is the last one.
        lines: offset in the decompressed file, and whole lines; None: the task makes all parts.
        done: of a large compressed file, the existing parts.
        look: existing parts of which only the input is read, since it may have changed.
    """

    number: int
    pieces: tuple[Piece, ...]
    in_parts: bool = False
    part: int = 0
    last: bool = True
    lines: tuple[int, bytes] | None = None
    done: tuple[int, ...] = ()
    look: tuple[PartName, ...] = ()

    @property
    def described(self) -> str:
        first, last = self.pieces[0], self.pieces[-1]
        if len(self.pieces) > 1:
            return f"{len(self.pieces)} files from {first.place.shown} to {last.place.shown}"
        return f"{first.place.shown}, bytes {first.start_bytes} to {first.stop_bytes}"

    @property
    def size_bytes(self) -> int:
        return sum(piece.stop_bytes - piece.start_bytes for piece in self.pieces)


def default_task_bytes(total_bytes: int) -> int:
    """Return a size with enough tasks for many workers and little loss in a kill, but few enough to be cheap."""
    return min(max(total_bytes // _WANTED_TASKS, _LEAST_TASK_BYTES), _MOST_TASK_BYTES)


def text_bytes(name: str, size_bytes: int) -> int:
    return size_bytes * (_EXPANSION if name.endswith((".gz", ".zst")) else 1)


@dataclass(frozen=True, slots=True)
class Tasks(Sequence[Task]):
    """All tasks in input order. Each iteration cuts them again, so that they take no memory."""

    inputs: Sequence[InputFile]
    task_bytes: int

    def __iter__(self) -> Iterator[Task]:
        number, small, small_bytes = 0, list[Piece](), 0
        for file, one in enumerate(self.inputs):
            whole = Piece(file, one.source, 0, one.size_bytes, one.size_bytes, one.kind, one.compression)
            is_small = one.kind == "whole" or text_bytes(one.name, one.size_bytes) <= self.task_bytes
            if is_small:
                small.append(whole)
                small_bytes += text_bytes(one.name, one.size_bytes)
                if small_bytes < self.task_bytes and len(small) < _MOST_TASK_FILES:
                    continue
            if small:
                yield Task(number, tuple(small))
                number, small, small_bytes = number + 1, [], 0
            if is_small:
                continue
            in_parts = one.compression != "none"
            step = one.size_bytes if in_parts else self.task_bytes
            for start in range(0, one.size_bytes, step):
                stop = min(start + step, one.size_bytes)
                yield Task(number, (replace(whole, start_bytes=start, stop_bytes=stop),), in_parts)
                number += 1
        if small:
            yield Task(number, tuple(small))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def cut_parts(task: Task, task_bytes: int, names: Sequence[PartName] = (), *, trusted: bool = True) -> Iterator[Task]:
    """Yield the missing parts of a large compressed file as tasks with lines, which are decompressed lazily.

    A part has at least `task_bytes` of decompressed lines. Those in `names` exist. Unless these are `trusted`, they are
    yielded too, to compare their lines.
    """
    piece = task.pieces[0]
    existing = {name.piece: name for name in names}
    for part, (offset_bytes, data, last) in enumerate(cut_stream(piece.place, piece.compression, task_bytes)):
        name = existing.get(part)
        if name is None or not trusted:
            look = () if name is None else (name,)
            yield replace(task, part=part, last=last, lines=(offset_bytes, data), look=look)
