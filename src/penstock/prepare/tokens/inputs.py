"""What is to be packed: files, folders and globs → a list of files in a fixed order, each with its digest.

Standard input, `-`, is copied into a temporary file first: inputs are read more than once.
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
from typing import Literal

import xxhash

from penstock._pool import Pool
from penstock._printable import recordable
from penstock._resolved import excluded_of
from penstock.engine.plan import PlannedInput
from penstock.errors import ConfigError, Corrupt, NotFound, PrepareError
from penstock.formats import SUFFIXES as OF_FORMATS
from penstock.formats import get_format
from penstock.formats._door import open_at
from penstock.formats._excluded import require_lists_not_recorded, require_no_list_above
from penstock.formats._excluding import stored
from penstock.formats._kept import carried_list, excluded_list
from penstock.formats.jsonl.scan import line_numbers
from penstock.formats.tables.hf import FORMAT as HF
from penstock.formats.tables.hf import saved_files
from penstock.store._files import named
from penstock.store.exclude_list import BESIDE, NOT_SHOWN, SIDE, Entry, read_list, with_lists
from penstock.store.find import find_files as search
from penstock.store.find import warn_of_links
from penstock.store.fingerprint import sample_fingerprint
from penstock.store.memory import MemoryStore
from penstock.store.place import Place, place_of
from penstock.store.resolve import absolute, is_url
from penstock.store.state import FileState, looking_up, states_of
from penstock.types import OpenOptions

Compression = Literal["none", "gzip", "zstd"]
InputFormat = Literal["auto", "jsonl", "text", "parquet"]
Kind = Literal["lines", "whole", "parquet", "arrow"]
"""How a file is read: line by line, all of it as one document, or row by row."""
TABLES: tuple[Kind, ...] = ("parquet", "arrow")

STDIN = "-"

COMPRESSED = (".gz", ".zst")
SUFFIXES = OF_FORMATS["jsonl"]
"""What is taken from a folder. A path or a glob may name anything."""

SUFFIXES_OF: Mapping[InputFormat, tuple[str, ...]] = MappingProxyType(
    {"auto": SUFFIXES, "jsonl": SUFFIXES, "text": (".txt", ".txt.gz", ".txt.zst"), "parquet": (".parquet",)}
)
"""The same for each format; where a folder has no JSONL, `"auto"` takes its Parquet files."""

_PARQUET_MAGIC = b"PAR1"
_OF_FILES = (".jsonl", ".ndjson", ".gz", ".zst", ".txt", ".parquet", ".arrow", ".json")
_ARROW_MAGICS = (b"\xff\xff\xff\xff", b"ARRO")  # of streams and of files; no text begins so

WHOLE_DIGEST_BYTES = 1 << 32
"""Inputs of at most so many bytes in all are hashed whole; of larger ones a sample is."""

_MAGIC: dict[Compression, bytes] = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
_SUFFIX_SAYS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}
_READ_BYTES = 1 << 20
_HEAD_BYTES = 4
_AT_ONCE = 16
_VERSION = "version:"
NO_STATUS: Mapping[str, os.stat_result] = MappingProxyType({})
NOTHING_KNOWN: Mapping[str, PlannedInput] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file to read.

    Attributes:
        name: path relative to the folder that all inputs share.
        place: where it is.
        size_bytes: its size.
        mtime_ns: time of its last change; 0 where it is not on this machine.
        compression: how it is compressed.
        digest: `"xxh3:…"` over all bytes, `"sample:…"` over a few, or `"version:…"`, what its store calls this one;
            empty where it is to be made (`with_digests`).
        kind: how it is read.
        held: all its bytes, of a small one that was read for its digest: it is not opened again.
        excluded: where its lines begin that its exclude list takes out, rising; `exclude_digest` that of the list.
        carried: entries of lines that are packed although they are excluded, by the numbers of the lines.
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
        """Its path."""
        return self.place.path

    @property
    def source(self) -> Place:
        """Where it is read from."""
        return self.place if self.held is None else Place(MemoryStore({self.path: self.held}), self.path)

    @property
    def digested_whole(self) -> bool:
        """Whether an equal digest means equal bytes."""
        return self.digest.startswith(("xxh3:", _VERSION))


@contextlib.contextmanager
def spooled(given: Sequence[str]) -> Generator[Sequence[str]]:
    """The same inputs, with standard input as a file `stdin` in the temporary folder (`TMPDIR`), for as long.

    Raises:
        ConfigError: standard input is named beside others.
        PrepareError: nothing came from it.
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


def find_paths(
    given: Sequence[str | os.PathLike[str]], input_format: InputFormat = "auto", *, follow_links: bool = False
) -> list[str]:
    """The files meant by paths, folders and globs, in byte order of their paths; see `find_files`."""
    return find_files(given, input_format, follow_links=follow_links)[0]


def find_files(
    given: Sequence[str | os.PathLike[str]], input_format: InputFormat = "auto", *, follow_links: bool = False
) -> tuple[list[str], dict[str, os.stat_result]]:
    """The files meant by paths, folders and globs, in byte order of their paths, and what is known of them.

    Folders are searched at any depth for names that end in one of `SUFFIXES_OF`; hidden names are left out. Links out
    of such a folder are refused without `follow_links`. A dataset saved by Hugging Face is the files that it lists.

    Returns:
        Their paths, and the statuses of those that were found in a folder and are no links, and of exclude lists there:
        these are asked for once.

    Raises:
        NotFound: nothing is there, or nothing fits.
        ConfigError: a file is named twice, or is no regular file.
        UnsafeData: a link leads out of a folder that is searched.
    """
    statuses: dict[str, os.stat_result] = {}
    kinds = [SUFFIXES_OF[input_format], *([SUFFIXES_OF["parquet"]] if input_format == "auto" else [])]
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
    """Return the files that `look` finds; raise `ConfigError` for an MDS dataset or tar shards."""
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
    """The files of a folder in which Hugging Face `datasets` saved one; none where it is none."""
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
    """What there is to know about the files; up to 4 GiB in all are read for their digests.

    Args:
        files: they, by absolute paths.
        input_format: what they are; `"auto"` tells tables by their first bytes, and takes all else for JSONL.
        whole_files: whether a file is one document.
        known: digests by name, which are taken where size and time of change are the same.
        statuses: of those of which it is known, by path.
        hold_bytes: of small files so many are kept, and not read again.
        digests: whether files that are read whole for them have theirs; see `with_digests`.

    Raises:
        Corrupt: a file is not the format or the compression that it should be.
    """
    stats = states_of(files, statuses)
    whole = sum(status.size_bytes for status in stats) <= WHOLE_DIGEST_BYTES
    how = _How(input_format, "whole" if whole_files else "lines", known, whole)
    given = list(zip(files, _names_below(files), stats, strict=True))
    found: list[InputFile] = []
    with Pool(_AT_ONCE, "penstock-inputs") as pool:  # of what is far away the beginnings, which are a request each
        far = pool.map(lambda one: _describe(*one, how, hold=False), (one for one in given if not one[0].is_local))
        for file, name, state in given:
            hold = state.size_bytes <= hold_bytes
            found.append(_describe(file, name, state, how, hold=hold) if file.is_local else next(far))
            hold_bytes -= len(found[-1].held or b"")
    return with_digests(found) if digests else found


def with_digests(
    inputs: Sequence[InputFile], run: Callable[[Callable[[Place], str], Iterable[Place]], Iterator[str]] = map
) -> list[InputFile]:
    """The same inputs with the digests that are missing; each is a task of `run`, which reads the file."""
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
    """The same inputs with what their exclude lists take out; lists of remote data are not looked for.

    Args:
        inputs: of one run.
        excludes: the list of the only input, instead of the one beside it; False for all samples.
        keep: pack these lines too, and carry their entries.
        known: what `find_files` found in folders.

    Raises:
        Corrupt: a list can't be read, or is of other data.
        ConfigError: an input whose rows can't be left out one by one.
    """
    if excludes is False:
        return list(inputs)
    if excludes is not None:
        if len(inputs) != 1:
            what = "an exclude list applies to one input"
            raise ConfigError(what, path=excludes.path, found=f"{len(inputs)} inputs", hint="Pack each one separately")
        return [_without(inputs[0], excludes, keep=keep)]
    local, far = [one for one in inputs if one.place.is_local], [one for one in inputs if not one.place.is_local]
    _require_named(far)
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


def _require_named(inputs: Sequence[InputFile]) -> None:
    """Refuse inputs that are far away beside which a list lies, by one listing of each folder; raises `ConfigError`."""
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
    """The first input that was touched, or is gone, since it was found; one that was read once can't change."""
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
    """Paths of files below the folder that all share, or with their bucket where they share none."""
    paths = [file.path if file.is_local else "/" + file.shown.replace("://", "/", 1) for file in files]
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [recordable(os.path.relpath(path, root)) for path in paths]


@dataclass(frozen=True, slots=True)
class _How:
    """How inputs are described: see `describe_inputs`; `whole`: whether digests are over all bytes."""

    input_format: InputFormat
    otherwise: Kind
    known: Mapping[str, PlannedInput]
    whole: bool


def _describe(file: Place, name: str, state: FileState, how: _How, *, hold: bool) -> InputFile:
    """One file: opened once, unless only a sample of a large one is digested.

    Raises:
        PrepareError: it has another size than a moment ago.
    """
    size_bytes, mtime_ns, known = state.size_bytes, state.mtime_ns, how.known.get(name)
    same = mtime_ns > 0 and known is not None and (known.size_bytes, known.mtime_ns) == (size_bytes, mtime_ns)
    at_once = how.whole and not same and not state.version and size_bytes <= _READ_BYTES
    data = file.store.get(file.path) if at_once else file.store.get(file.path, 0, _HEAD_BYTES)
    kind = _kind(data, file, how)
    compression = "none" if kind in TABLES else _compression(data[:_HEAD_BYTES], file)
    if known is not None and same:
        digest = known.digest
    elif state.version:
        digest = _VERSION + state.version
    elif at_once:
        digest = f"xxh3:{xxhash.xxh3_128_hexdigest(data)}"
    elif how.whole:
        digest = ""
    else:
        digest = f"sample:{sample_fingerprint(file.store, 'input', b'', [('', file.path)])}"
    held = data if hold and at_once and kind not in TABLES else None
    if held is not None and len(held) != size_bytes:
        raise PrepareError(
            "the input changed while it was being read", path=file.path, hint="Don't change inputs during a run"
        )
    return InputFile(name, file, size_bytes, mtime_ns, compression, digest, kind, held)


def _kind(head: bytes, file: Place, how: _How) -> Kind:
    if how.input_format not in ("auto", "parquet"):
        return how.otherwise
    if head.startswith(_PARQUET_MAGIC):
        return "parquet"
    if how.input_format == "auto" and head.startswith(_ARROW_MAGICS):
        return "arrow"
    if how.input_format == "auto" and not file.path.endswith(SUFFIXES_OF["parquet"]):
        return how.otherwise
    raise Corrupt(
        "not a Parquet file",
        path=file.path,
        offset_bytes=0,
        found=head[:_HEAD_BYTES].hex(" ") or "an empty file",
        expected=_PARQUET_MAGIC.hex(" "),
    )


def _compression(head: bytes, file: Place) -> Compression:
    # No JSON begins with these bytes, so they are trusted more than the name.
    for compression, magic in _MAGIC.items():
        if head.startswith(magic):
            return compression
    says = _SUFFIX_SAYS.get(PurePosixPath(file.name).suffix)
    if says is None:
        return "none"
    raise Corrupt(
        f"the name ends in {says}, but the content doesn't match",
        path=file.path,
        offset_bytes=0,
        found=head.hex(" ") or "an empty file",
        expected=_MAGIC[says].hex(" "),
    )


def _whole_digest(file: Place) -> str:
    hasher = xxhash.xxh3_128()
    offset_bytes = 0
    while data := file.store.get(file.path, offset_bytes, _READ_BYTES):
        hasher.update(data)
        offset_bytes += len(data)
    return f"xxh3:{hasher.hexdigest()}"
