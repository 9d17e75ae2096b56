"""What is asked of a conversion: where it reads and writes, the formats of both sides, and the options of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.abc import Format, Source
from penstock.convert.columns import GROUPED, MISSING, PART_FORMATS, Missing
from penstock.convert.eos import EosRule
from penstock.convert.tables import TABLE, TableOptions, holds_tables, is_table, table_files
from penstock.engine.options import RunOptions
from penstock.errors import ConfigError, PenstockError, Unsupported
from penstock.formats import files_at, formats_of_name, get_format, require_taken, sniff
from penstock.formats._read_only import instead_of
from penstock.formats.tokens.folder.index import SUFFIXES
from penstock.store._files import require_movable
from penstock.store.local import Kept
from penstock.store.memory import MemoryStore
from penstock.store.outputs import output_path, require_other, require_other_name
from penstock.store.place import Place
from penstock.store.powers import CopyingStore
from penstock.types import OpenOptions, Sample

Samples = Source[Sample] | Iterable[Sample]
"""What may be read and is at no place: a source that is open, or samples, once."""

_OF_TOKENS = ("tokens_column", "tokens_dtype", "mask_column", "one_document", "documents")
_OF_SOURCE = ("layout", "flavor", "raw", "trust", "follow_links", "eos_id", "read", "excludes", *_OF_TOKENS)
_OF_DATASETS = ("split", "layout", "flavor", "raw", "planes", *_OF_TOKENS)


@dataclass(frozen=True, slots=True)
class Asked:
    """A conversion whose places and formats make sense.

    Attributes:
        source: a dataset; or what was given instead of one.
        source_format: of the dataset, `"table"` for a file of comma- or tab-separated values; "" where it is none.
        target: what is written; links are followed.
        to: its format.
        rule: for EOS tokens.
        columns: of the target: name → encoding; or names alone.
        group_rows: rows of a group, None for as many as make some shards.
        file_tokens: make a folder of token files of this size; None: one dataset.
        how: how to run it.
        of_source: options of the source.
        of_target: options of the target's writer.
        missing: what becomes of samples that lack a column.
        kept: what is found again of the files of a killed writer.
        table: how to read a text table.
        prefix_keys: put the name of the shard before each key of tars.
    """

    source: Place | Samples
    source_format: str
    target: Place
    to: Format
    rule: EosRule
    columns: Mapping[str, str] | Sequence[str] | None
    group_rows: int | None
    file_tokens: int | None
    how: RunOptions
    of_source: Mapping[str, Any]
    of_target: Mapping[str, Any]
    missing: Missing = "error"
    kept: Kept = field(default_factory=Kept)
    table: TableOptions = field(default_factory=TableOptions)
    prefix_keys: bool = False


def understand(
    source: Place | Samples,
    target: Place,
    *,
    to: str | None,
    format: str | None,
    eos: Sequence[Any] | None,
    columns: Mapping[str, str] | Sequence[str] | None,
    group_rows: int | None,
    file_tokens: int | None,
    how: RunOptions,
    missing: Missing = "error",
    options: Mapping[str, Any],
) -> Asked:
    """What the arguments of `convert` mean, without a look into the data.

    Raises:
        NotFound: no source.
        Unsupported: a target that is only read.
        ConfigError: a target that can't be, or arguments that make no sense.
        PermissionError: what is to be replaced is another user's.
    """
    chosen, rule = _target_format(target, to, file_tokens), EosRule.of(eos)
    _require_columns(columns)
    _require_values(options)
    given = {name: value for name, value in options.items() if value is not None}
    of_table = {name: given.pop(f"source_{name}", None) for name in ("separator", "encoding")}
    table = TableOptions(**of_table, follow_links=bool(given.get("follow_links")))
    drops = given.pop("drop_planes", False) or OpenOptions(planes=options.get("planes", "auto")).planes is None
    given.pop("planes", None)
    prefix_keys = bool(given.pop("prefix_keys", False))
    bare = {"planes": None} if drops else {}
    of_source, of_target = _sides(given, chosen)
    of_source |= bare
    source, source_format = _source(source, format, of_source.get("layout"), tables=not chosen.traits.tokens)
    if chosen.name == "jsonl" != source_format and "flavor" in of_source:
        of_target["flavor"] = of_source.pop("flavor")
    if source_format != TABLE and any(value is not None for value in of_table.values()):
        refused = " and ".join(f"--{name} (source_{name}=)" for name, value in of_table.items() if value is not None)
        raise ConfigError(f"{refused}: only for CSV and TSV files with a header", found=source_format or "no file")
    if prefix_keys and source_format != "webdataset":
        what, hint = "only tar samples have keys and shards", "Omit --prefix-keys (prefix_keys=)"
        raise ConfigError(f"prefix_keys: {what}", path=target.path, found=source_format or "no dataset", hint=hint)
    # The usual column of ids is found when rows are opened, and what needs it is checked then.
    is_rows = isinstance(source, Place) and source_format != TABLE and not get_format(source_format).traits.tokens
    finds_tokens = is_rows and chosen.traits.tokens and "tokens_column" not in of_source
    later = ("planes", "mask_column") if finds_tokens else ()
    _require_taken(source, source_format, {name: of_source[name] for name in of_source if name not in later})
    target = replace(target, path=output_path(target.store, target.path))
    if how.overwrite and target.is_local and not file_tokens:
        for path in files_at(chosen.name, target.path):
            require_movable(path)
    if isinstance(source, Place):
        is_text = source_format == TABLE
        files = table_files(source, follow_links=True) if is_text else files_at(source_format, source.path)
        others = () if file_tokens else files_at(chosen.name, target.path)
        require_other(files, target.path, *others)
        require_other_name([source.path], target.path)
    _require_shareable(how, source, target, chosen)
    if how.keep_excluded:
        _require_kept(source, target, how)
    if missing not in MISSING:
        raise ConfigError("unknown rule for missing values", found=repr(missing), expected=" | ".join(MISSING))
    if missing != "error" and chosen.traits.tokens:
        raise ConfigError("tokens have no columns, so none can be missing", path=target.path, hint="Omit --missing")
    if missing == "skip" and how.keep_excluded:
        what = "excluded samples can't be copied with their entries while others are skipped"
        raise ConfigError(what, path=target.path, hint="Omit --missing or --keep-excluded")
    about = (rule, columns, group_rows, file_tokens, how, of_source, of_target, missing)
    return Asked(source, source_format, target, chosen, *about, table=table, prefix_keys=prefix_keys)


def _require_kept(source: Place | Samples, target: Place, how: RunOptions) -> None:
    """That entries can go along; raises `ConfigError`."""
    found = "samples that aren't stored" if not isinstance(source, Place) else None
    found = "a part of a distributed job" if how.is_distributed else found
    found = "a target that isn't local" if not target.is_local else found
    found = "a dataset to be replaced" if how.overwrite and target.exists() else found
    if found:
        what = "excluded samples can't be copied with their entries here"
        raise ConfigError(what, path=target.path, found=found, hint="Omit --keep-excluded (keep_excluded=)")


def can_be_shared(to: str, target: Place) -> bool:
    """Whether many workers may write samples in that format there, in groups."""
    return to in (*GROUPED, *PART_FORMATS) and not isinstance(target.store, MemoryStore)


def _require_shareable(how: RunOptions, source: Place | Samples, target: Place, to: Format) -> None:
    """That work which is to be shared, or thrown away, is in groups; raises `ConfigError`."""
    if not (how.is_distributed or how.restart):
        return
    if not (to.traits.tokens or can_be_shared(to.name, target)):
        asked = "part (--part)" if how.part else "finish (--finish)" if how.finish else "restart (--restart)"
        what = f"{to.name} is written by a single process: there is no work to distribute or restart"
        hint = f"Omit it. Distributed conversion works to token formats and to {', '.join((*GROUPED, *PART_FORMATS))}"
        raise ConfigError(what, path=target.path, found=asked, hint=hint)
    if how.is_distributed and not (isinstance(source, Place) or hasattr(source, "fingerprint")):
        what = "samples from an iterator can't be distributed to workers"
        raise ConfigError(what, path=target.path, hint="Save them as a dataset")


def _target_format(target: Place, to: str | None, file_tokens: int | None) -> Format:
    """The format of the target: as named, else by the suffix of its path; of a folder of token files, of these."""
    if file_tokens is not None:
        return _format_of_files(target, to, file_tokens)
    broken: list[str] = []
    fitting = [to] if to else formats_of_name(target.path, broken)
    writable = [name for name in fitting if get_format(name).traits.write]
    if fitting and not writable:
        hint = instead_of(get_format(fitting[0])) if to else "Choose another one with --to (to=)"
        raise Unsupported(f"the format {get_format(fitting[0]).name!r} is read-only", path=target.path, hint=hint)
    if len(writable) != 1:
        hint = " ".join(("Specify it with --to (to=).", *broken)) if broken else "Specify it with --to (to=)"
        raise ConfigError("the target format isn't clear from its name", path=target.path, hint=hint)
    return get_format(writable[0])


def _format_of_files(target: Place, to: str | None, file_tokens: int) -> Format:
    """As `pack` has it."""
    if file_tokens < 1:
        raise ConfigError("file_tokens must be positive", found=f"file_tokens={file_tokens}", expected="1 or more")
    if any(get_format(name).traits.tokens for name in formats_of_name(target.path)):
        hint = "Give a folder name, or omit file_tokens (--file-tokens)"
        raise ConfigError(
            "this is the name of a single dataset, not a folder of token files", path=target.path, hint=hint
        )
    to = "pbin" if to is None else get_format(to).name
    if to not in SUFFIXES:
        raise ConfigError("not a token file format", path=target.path, found=to, expected=" | ".join(SUFFIXES))
    return get_format(to)


def _sides(given: Mapping[str, Any], target: Format) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the source and of the target. A split is that of the target where one can be written."""
    of_source = {name: value for name, value in given.items() if name in _OF_SOURCE}
    of_target = {name: value for name, value in given.items() if name not in _OF_SOURCE}
    if "split" in of_target and (not target.traits.splits or target.name in GROUPED):
        of_source["split"] = of_target.pop("split")
    if "source_split" in of_target:
        of_source["split"] = of_target.pop("source_split")
    return of_source, of_target


def _require_taken(source: Place | Samples, format: str, of_source: Mapping[str, Any]) -> None:
    """That the source can follow its options; an `eos_id` is recorded in any case. Raises `ConfigError`."""
    if not isinstance(source, Place):
        refused, why = [name for name in of_source if name != "eos_id"], "the source is already open"
    elif format == TABLE:
        refused, why = (
            [name for name in of_source if name in _OF_DATASETS],
            "a table file doesn't support these options",
        )
    else:
        chosen = {
            name: value for name, value in of_source.items() if name in ("split", "layout", "planes", *_OF_TOKENS)
        }
        return require_taken(get_format(format), source.path, OpenOptions(**chosen))
    if any(of_source[name] or name == "planes" for name in refused):
        raise ConfigError(why, found=", ".join(refused), hint="Omit them")


def _require_columns(columns: Any) -> None:
    """That columns are names, or names and what they are written as; raises `ConfigError`."""
    texts: Any = [*columns, *columns.values()] if isinstance(columns, Mapping) else columns
    if columns is not None and not (isinstance(texts, list | tuple) and all(isinstance(one, str) for one in texts)):
        raise ConfigError("columns must be names, or names and encodings", found=repr(columns))


def _require_values(options: Mapping[str, Any]) -> None:
    """That texts are UTF-8 and an EOS is an id; a writer looks at the others. Raises `ConfigError`."""
    for name, value in options.items():
        if isinstance(value, str) and value != value.encode(errors="ignore").decode():
            raise ConfigError(f"the option {name} is not UTF-8", found=repr(value))
    eos_id = options.get("eos_id")
    if eos_id is not None and (isinstance(eos_id, bool) or not hasattr(eos_id, "__index__")):
        raise ConfigError("invalid value for eos_id", found=repr(eos_id), expected="an integer")


def _source(
    source: Place | Samples, format: str | None, layout: str | None, *, tables: bool
) -> tuple[Place | Samples, str]:
    """Return the source and its format; `"table"` for CSV and TSV files, which are not datasets."""
    if not isinstance(source, Place):
        return source, ""
    tables = tables and (source.is_local or isinstance(source.store, CopyingStore))
    if tables and (format == TABLE or (format is None and is_table(source))):
        return replace(source, path=source.absolute), TABLE
    try:
        return source, (get_format(format) if format else sniff(source.store, source.path, layout=layout)).name
    except PenstockError:
        if tables and format is None and holds_tables(source):
            return replace(source, path=source.absolute), TABLE
        raise
