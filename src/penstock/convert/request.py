"""The arguments of `convert`, checked as far as possible without reading data: paths, formats, options, EOS rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.abc import Format, Source
from penstock.convert.columns import GROUPED, MISSING, PART_FORMATS, Missing
from penstock.convert.tables import TABLE, TableOptions, holds_tables, is_table, table_files
from penstock.engine.options import RunOptions
from penstock.errors import ConfigError, PenstockError, Unsupported
from penstock.formats import files_at, formats_of_name, get_format, require_taken, sniff
from penstock.formats._registry import instead_of
from penstock.formats.tokens.folder.index import SUFFIXES
from penstock.store._files import require_movable
from penstock.store.local import Kept
from penstock.store.outputs import output_path, require_other, require_other_name
from penstock.store.place import Place
from penstock.types import IntArray, OpenOptions, Sample

Samples = Source[Sample] | Iterable[Sample]
"""An opened source, or samples that are read once."""

_TOKEN_OPTIONS = ("tokens_column", "tokens_dtype", "mask_column", "one_document", "documents")
_SOURCE_OPTIONS = ("layout", "flavor", "raw", "trust", "follow_links", "eos_id", "read", "excludes", *_TOKEN_OPTIONS)
_DATASET_OPTIONS = ("split", "layout", "flavor", "raw", "planes", *_TOKEN_OPTIONS)


_KEEP_HINT = "Keep documents as they are, without --eos"


@dataclass(frozen=True, slots=True)
class EosRule:
    """Rule for the end of every document.

    Attributes:
        action: `"keep"` documents unchanged, `"add"` an id to each, or `"strip"` it from each.
        eos_id: the id; None if documents are kept.
        promised: id that, according to the caller, ends each document. It is recorded, so documents are checked for it.
        only_recorded: the id to strip is the recorded EOS id, which not every document ends with; other documents stay.

    Examples:
        >>> from penstock.convert import EosRule
        >>> rule = EosRule.of(("add", 0))
        >>> rule.action, rule.eos_id
        ('add', 0)
    """

    action: Literal["keep", "add", "strip"] = "keep"
    eos_id: int | None = None
    promised: int | None = None
    only_recorded: bool = False

    @classmethod
    def of(cls, given: Sequence[Any] | None) -> EosRule:
        """Make a rule from `("add", id)`, `("strip", id)` or None, or raise `ConfigError`."""
        if given is None:
            return cls()
        match tuple(given):
            case ("add" | "strip" as action, int() as eos_id) if 0 <= eos_id < 1 << 32 and eos_id is not True:
                return cls(action, eos_id)
            case _:
                raise ConfigError("unknown EOS rule", found=repr(given), expected='("add", id) or ("strip", id)')

    def known_after(self, before: int | None) -> int | None:
        """Return the id that ends every document afterwards, if known, from the one before."""
        return {"keep": before, "add": self.eos_id, "strip": None}[self.action]

    def require_sense(self, shown: str, before: int | None) -> None:
        """Raise `ConfigError` if the rule contradicts the data.

        Args:
            shown: name of the source in errors.
            before: id that is known to end every document of the source.

        Raises:
            ConfigError: an EOS id is to be added to documents that have one, or another one than theirs is to be
                removed.
        """
        if before is None or self.action == "keep" or (self.action == "strip" and self.eos_id == before):
            return
        raise ConfigError(
            "documents already have an EOS" if self.action == "add" else "documents end with a different EOS",
            path=shown,
            found=f"id {before} at the end of each",
            expected=None if self.action == "add" else f"id {self.eos_id}",
            hint=f"Keep them as they are, or strip it first: --eos strip {before}",
        )

    def apply(
        self, tokens: NDArray[Any], doc_lengths: IntArray, first_doc: int, shown: str
    ) -> tuple[NDArray[Any], IntArray]:
        """Apply the rule to a run of documents.

        Args:
            tokens: uint[n_tokens].
            doc_lengths: int64[n_docs].
            first_doc: number of the first document, for errors.
            shown: name of the source in errors.

        Returns:
            The tokens and lengths of the documents.

        Raises:
            ConfigError: a document already ends with the id to be added, or doesn't end with the one that is to be
                removed or was promised.
        """
        if self.action == "keep" and self.promised is None:
            return tokens, doc_lengths
        ends = np.cumsum(doc_lengths)
        last = np.maximum(ends - 1, 0)
        if self.action == "add":
            has_one = np.flatnonzero((doc_lengths > 0) & (tokens[last] == self.eos_id if len(tokens) else False))
            if len(has_one):
                raise ConfigError(
                    f"document {first_doc + int(has_one[0])} already ends with the EOS to add",
                    path=shown,
                    found=f"{len(has_one)} of {len(doc_lengths)} checked documents",
                    hint="Keep documents as they are, without --eos; or specify the EOS of the source with --eos-id",
                )
            return self._added(tokens, ends), doc_lengths + 1
        keeps = self.action == "keep"
        eos_id = self.promised if keeps else self.eos_id
        has_none = (doc_lengths == 0) | (tokens[last] != eos_id if len(tokens) else True)
        wrong = np.flatnonzero(has_none)
        if len(wrong) and not self.only_recorded:
            place = int(wrong[0])
            which = "given by --eos-id (eos_id=)" if keeps else "to strip"
            hint = "Omit --eos-id; if rows cut through documents, use --one-document" if keeps else _KEEP_HINT
            raise ConfigError(
                f"document {first_doc + place} doesn't end with the EOS {which}",
                path=shown,
                found=f"id {int(tokens[last[place]])}" if doc_lengths[place] else "no token",
                expected=f"id {eos_id}",
                hint=hint,
            )
        if keeps:
            return tokens, doc_lengths
        keep = np.ones(len(tokens), np.bool_)
        keep[last[~has_none]] = False
        return tokens[keep], doc_lengths - ~has_none

    def _added(self, tokens: NDArray[Any], ends: IntArray) -> NDArray[Any]:
        eos = np.min_scalar_type(self.eos_id or 0)
        longer = np.empty(len(tokens) + len(ends), np.promote_types(tokens.dtype, eos))
        is_eos = np.zeros(len(longer), np.bool_)
        is_eos[ends + np.arange(len(ends))] = True
        longer[is_eos] = self.eos_id
        longer[~is_eos] = tokens
        return longer


@dataclass(frozen=True, slots=True)
class Request:
    """A conversion with valid arguments.

    Attributes:
        source: a dataset; or an opened source or an iterable.
        source_format: format of the dataset, `"table"` for CSV and TSV files; empty if it isn't a dataset.
        target: the dataset to write; links are followed.
        to: its format.
        rule: rule for EOS tokens.
        columns: columns of the target: name → encoding, or names.
        group_rows: rows per group; None for a few shards' worth.
        file_tokens: tokens per file of a folder of token files; None for one dataset.
        run_options: how to run it.
        source_options: opening options of the source.
        target_options: writer options of the target.
        missing: what to do with samples that lack a column.
        kept: bytes reused from the files of a killed writer.
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
    run_options: RunOptions
    source_options: Mapping[str, Any]
    target_options: Mapping[str, Any]
    missing: Missing = "error"
    kept: Kept = field(default_factory=Kept)
    table: TableOptions = field(default_factory=TableOptions)
    prefix_keys: bool = False


def parse_request(
    source: Place | Samples,
    target: Place,
    *,
    to: str | None,
    format: str | None,
    eos: Sequence[Any] | None,
    columns: Mapping[str, str] | Sequence[str] | None,
    group_rows: int | None,
    file_tokens: int | None,
    run_options: RunOptions,
    missing: Missing = "error",
    options: Mapping[str, Any],
) -> Request:
    """Check the arguments of `convert` without reading data.

    Raises:
        NotFound: the source doesn't exist.
        Unsupported: the format of the target is read-only.
        ConfigError: the target isn't possible, or arguments contradict each other.
        PermissionError: the dataset to replace belongs to another user.
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
    source_options, target_options = _sides(given, chosen)
    source_options |= bare
    source, source_format = _source(source, format, source_options.get("layout"), tables=not chosen.traits.tokens)
    if chosen.name == "jsonl" != source_format and "flavor" in source_options:
        target_options["flavor"] = source_options.pop("flavor")
    if source_format != TABLE and any(value is not None for value in of_table.values()):
        refused = " and ".join(f"--{name} (source_{name}=)" for name, value in of_table.items() if value is not None)
        raise ConfigError(f"{refused}: only for CSV and TSV files with a header", found=source_format or "no file")
    if prefix_keys and source_format != "webdataset":
        what, hint = "only tar samples have keys and shards", "Omit --prefix-keys (prefix_keys=)"
        raise ConfigError(f"prefix_keys: {what}", path=target.path, found=source_format or "no dataset", hint=hint)
    # The usual column of ids is found when rows are opened, and what needs it is checked then.
    is_rows = isinstance(source, Place) and source_format != TABLE and not get_format(source_format).traits.tokens
    finds_tokens = is_rows and chosen.traits.tokens and "tokens_column" not in source_options
    later = ("planes", "mask_column") if finds_tokens else ()
    _require_taken(source, source_format, {name: source_options[name] for name in source_options if name not in later})
    target = replace(target, path=output_path(target.store, target.path))
    if run_options.overwrite and target.is_local and not file_tokens:
        for path in files_at(chosen.name, target.path):
            require_movable(path)
    if isinstance(source, Place):
        is_text = source_format == TABLE
        files = table_files(source, follow_links=True) if is_text else files_at(source_format, source.path)
        others = () if file_tokens else files_at(chosen.name, target.path)
        require_other(files, target.path, *others)
        require_other_name([source.path], target.path)
    _require_distributable(run_options, source, target, chosen)
    if run_options.keep_excluded:
        _require_entries_copyable(source, target, run_options)
    if missing not in MISSING:
        raise ConfigError("unknown rule for missing values", found=repr(missing), expected=" | ".join(MISSING))
    if missing != "error" and chosen.traits.tokens:
        raise ConfigError("tokens have no columns, so none can be missing", path=target.path, hint="Omit --missing")
    if missing == "skip" and run_options.keep_excluded:
        what = "excluded samples can't be copied with their entries while others are skipped"
        raise ConfigError(what, path=target.path, hint="Omit --missing or --keep-excluded")
    about = (rule, columns, group_rows, file_tokens, run_options, source_options, target_options, missing)
    return Request(source, source_format, target, chosen, *about, table=table, prefix_keys=prefix_keys)


def _require_entries_copyable(source: Place | Samples, target: Place, run_options: RunOptions) -> None:
    """Raise `ConfigError` if the entries of excluded samples can't be copied."""
    found = "samples that aren't stored" if not isinstance(source, Place) else None
    found = "a part of a distributed job" if run_options.is_distributed else found
    found = "a target that isn't local" if not target.is_local else found
    found = "a dataset to be replaced" if run_options.overwrite and target.exists() else found
    if found:
        what = "excluded samples can't be copied with their entries here"
        raise ConfigError(what, path=target.path, found=found, hint="Omit --keep-excluded (keep_excluded=)")


def can_be_shared(to: str, target: Place) -> bool:
    """Return whether several workers can write samples in this format there, in groups."""
    return to in (*GROUPED, *PART_FORMATS) and not target.store.in_memory


def _require_distributable(run_options: RunOptions, source: Place | Samples, target: Place, to: Format) -> None:
    """Raise `ConfigError` if the work can't be distributed or restarted, but should be."""
    if not (run_options.is_distributed or run_options.restart):
        return
    if not (to.traits.tokens or can_be_shared(to.name, target)):
        option = "part" if run_options.part else "finish" if run_options.finish else "restart"
        what = f"{to.name} is written by a single process: there is no work to distribute or restart"
        hint = f"Omit it. Distributed conversion works to token formats and to {', '.join((*GROUPED, *PART_FORMATS))}"
        raise ConfigError(what, path=target.path, found=f"{option} (--{option})", hint=hint)
    if run_options.is_distributed and not (isinstance(source, Place) or hasattr(source, "fingerprint")):
        what = "samples from an iterator can't be distributed to workers"
        raise ConfigError(what, path=target.path, hint="Save them as a dataset")


def _target_format(target: Place, to: str | None, file_tokens: int | None) -> Format:
    """Return the format of the target, or of its token files: `to`, else by the suffix of its path."""
    if file_tokens is not None:
        return _format_of_files(target, to, file_tokens)
    broken: list[str] = []
    fitting = [to] if to else formats_of_name(target.path, broken)
    writable = [name for name in fitting if get_format(name, to_write=True).traits.write]
    if fitting and not writable:
        hint = instead_of(get_format(fitting[0])) if to else "Choose another one with --to (to=)"
        raise Unsupported(f"the format {get_format(fitting[0]).name!r} is read-only", path=target.path, hint=hint)
    if len(writable) != 1:
        hint = " ".join(("Specify it with --to (to=).", *broken)) if broken else "Specify it with --to (to=)"
        raise ConfigError("the target format isn't clear from its name", path=target.path, hint=hint)
    return get_format(writable[0])


def _format_of_files(target: Place, to: str | None, file_tokens: int) -> Format:
    """Return the format of token files, as `pack` chooses it."""
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
    """Return the options of the source and of the target. `split` is the target's if its format can write one."""
    source_options = {name: value for name, value in given.items() if name in _SOURCE_OPTIONS}
    target_options = {name: value for name, value in given.items() if name not in _SOURCE_OPTIONS}
    if "split" in target_options and (not target.traits.splits or target.name in GROUPED):
        source_options["split"] = target_options.pop("split")
    if "source_split" in target_options:
        source_options["split"] = target_options.pop("source_split")
    return source_options, target_options


def _require_taken(source: Place | Samples, format: str, source_options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if the source doesn't support an option; `eos_id` is recorded in any case."""
    if not isinstance(source, Place):
        refused, why = [name for name in source_options if name != "eos_id"], "the source is already open"
    elif format == TABLE:
        refused, why = (
            [name for name in source_options if name in _DATASET_OPTIONS],
            "a table file doesn't support these options",
        )
    else:
        opening = ("split", "layout", "planes", *_TOKEN_OPTIONS)
        chosen = {name: value for name, value in source_options.items() if name in opening}
        return require_taken(get_format(format), source.path, OpenOptions(**chosen))
    if any(source_options[name] or name == "planes" for name in refused):
        raise ConfigError(why, found=", ".join(refused), hint="Omit them")


def _require_columns(columns: Any) -> None:
    """Raise `ConfigError` unless columns are names, or names and encodings."""
    texts: Any = [*columns, *columns.values()] if isinstance(columns, Mapping) else columns
    if columns is not None and not (isinstance(texts, list | tuple) and all(isinstance(one, str) for one in texts)):
        raise ConfigError("columns must be names, or names and encodings", found=repr(columns))


def _require_values(options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless texts are UTF-8 and the EOS is an integer; writers check the others."""
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
    tables = tables and (source.is_local or source.store.keeps_copies)
    if tables and (format == TABLE or (format is None and is_table(source))):
        return replace(source, path=source.absolute), TABLE
    try:
        return source, (get_format(format) if format else sniff(source.store, source.path, layout=layout)).name
    except PenstockError:
        if tables and format is None and holds_tables(source):
            return replace(source, path=source.absolute), TABLE
        raise
