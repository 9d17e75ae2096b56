"""`pack_encoded_data` of Modalities: its settings, its tokenizers, and the lines that its index names."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from penstock._optional import require
from penstock.compat.modalities.commands.data import Done, Target, require_sound_pbin
from penstock.engine.options import Progress
from penstock.engine.rows import read_run, runs
from penstock.errors import ConfigError, Corrupt, NotFound
from penstock.formats import create
from penstock.formats.jsonl.build import IndexedLines, index_path_for
from penstock.formats.jsonl.index import load_lines, remake
from penstock.prepare import PackProgress, PackReport, pack
from penstock.prepare.tokens.engines import load_tokenizer
from penstock.prepare.tokens.tokenizer import NO_EOS, parse_tokenizer, require_loadable
from penstock.reshape.rows import LineRows, TokenRows, open_rows
from penstock.store.exclude_list import require_no_list
from penstock.store.local import LocalStore
from penstock.store.place import Place, local_path
from penstock.types import IntArray, Manifest

_SHOWN = 5
_SETTINGS = ("src_path", "dst_path", "index_path", "jq_pattern", "num_cpus", "eod_token")
_COUNTS = ("processing_batch_size", "raw_samples_queue_size", "processed_samples_queue_size")
_HF_KEYS = ("pretrained_model_name_or_path", "max_length", "truncation", "padding", "special_tokens")
_SP_KEYS = ("tokenizer_model_file",)


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The `tokenizer` section.

    Attributes:
        path: a folder with a `tokenizer.json`, or a SentencePiece model.
        max_length: number of tokens to which texts are truncated; None for whole texts.
        special_tokens: tokens of the vocabulary that become special tokens.
    """

    path: str
    max_length: int | None = None
    special_tokens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PackSettings:
    """Validated `settings` section; the sizes of queues and batches have no effect."""

    src_path: Path
    dst_path: Path
    index_path: Path
    jq_pattern: str
    num_cpus: int
    eod_token: str
    tokenizer: Tokenizer
    ignored: tuple[str, ...] = ()


def pack_encoded_data(
    config_dict: Mapping[str, Any], file_existence_policy: str | Enum = "error", *, progress: Progress | None = None
) -> Done:
    """Tokenize the lines listed in an index and pack them, each followed by the EOD token.

    Lines without a document are skipped and listed. An interrupted call resumes when it is repeated.

    Args:
        config_dict: result of `load_config`.
        file_existence_policy: `"skip"`, `"error"` or `"override"`, or Modalities' enum.
        progress: called with the number of documents done and a text.

    Raises:
        ConfigError: a setting is invalid, or the output exists.
        NotFound: a file is missing.
        PrepareError: no line has a document, a worker was killed, or the disk is full.

    Examples:
        >>> from pathlib import Path
        >>> from penstock.compat.modalities import PackedMemMapDatasetBase, create_raw_data_index, pack_encoded_data
        >>> done = create_raw_data_index(Path("docs.jsonl"))
        >>> config = {
        ...     "settings": {
        ...         "src_path": "docs.jsonl",
        ...         "dst_path": "docs.pbin",
        ...         "index_path": "docs.idx",
        ...         "jq_pattern": ".text",
        ...         "num_cpus": 1,
        ...         "eod_token": "<|endoftext|>",
        ...         "processing_batch_size": 10,
        ...         "raw_samples_queue_size": 10,
        ...         "processed_samples_queue_size": 10,
        ...     },
        ...     "tokenizer": {
        ...         "component_key": "tokenizer",
        ...         "variant_key": "pretrained_hf_tokenizer",
        ...         "config": {"pretrained_model_name_or_path": "."},
        ...     },
        ... }
        >>> done = pack_encoded_data(config)
        >>> len(PackedMemMapDatasetBase("docs.pbin", "input_ids"))
        6
    """
    settings = read_settings(config_dict)
    target = Target(settings.dst_path, file_existence_policy, require_sound_pbin)
    if kept := target.kept():
        return kept
    with contextlib.ExitStack() as stack:
        source, left_out = stack.enter_context(_indexed(settings.src_path, settings.index_path))
        tokenizer = stack.enter_context(_with_special_tokens(settings.tokenizer))
        report = _pack(settings, source, tokenizer, target.overwrite, progress)
    done = Done(report.output, f"{report.output}: {report.documents:,} documents, {report.tokens:,} tokens")
    done.differences.extend(_losses(report))
    if left_out:
        done.notes.append(f"{left_out:,} lines aren't in the index and are skipped")
    if settings.ignored:
        done.notes.append(f"unknown settings are ignored: {', '.join(settings.ignored)}")
    return done


def read_settings(config: Mapping[str, Any]) -> PackSettings:
    """Read the sections `settings` and `tokenizer` of a configuration; others are ignored, as in the original.

    Raises:
        ConfigError: a setting is missing or invalid.
        NotFound: the source or its index is missing.
    """
    given = section(config, "settings")
    for name in _COUNTS:
        _positive(given, name)
    src_path = existing_file(given, "src_path")
    dst_path = given.get("dst_path")
    index_path = given.get("index_path")
    return PackSettings(
        src_path=src_path,
        dst_path=src_path.with_name(f"{src_path.stem}.pbin") if dst_path is None else path_of(given, "dst_path"),
        index_path=existing_file({"index_path": index_path or index_path_for(str(src_path))}, "index_path"),
        jq_pattern=text_of(given, "jq_pattern"),
        num_cpus=_positive(given, "num_cpus") if "num_cpus" in given else os.cpu_count() or 1,
        eod_token=text_of(given, "eod_token"),
        tokenizer=_read_tokenizer(section(config, "tokenizer")),
        ignored=tuple(name for name in given if name not in (*_SETTINGS, *_COUNTS)),
    )


# --- settings ------------------------------------------------------------------------------------------------------


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a configuration; raise `ConfigError` if it isn't a mapping."""
    found = config.get(name)
    if not isinstance(found, Mapping):
        raise ConfigError(f"the configuration has no section {name!r}", found=", ".join(map(str, config)) or "nothing")
    return cast("Mapping[str, Any]", found)


def text_of(given: Mapping[str, Any], name: str) -> str:
    """Return a setting that must be a text or a path, or raise `ConfigError`."""
    value = given.get(name)
    if not isinstance(value, str | Path):
        raise ConfigError(f"the setting {name!r} is not a string", found=repr(value))
    return str(value)


def path_of(given: Mapping[str, Any], name: str) -> Path:
    """Return a setting that must be a local path, or raise `ConfigError`."""
    return Path(local_path(text_of(given, name), f"the setting {name!r}"))


def existing_file(given: Mapping[str, Any], name: str) -> Path:
    """Return a setting that must be an existing file, or raise `ConfigError` or `NotFound`."""
    path = path_of(given, name)
    if not path.is_file():
        hint = (
            "Create it with `penstock modalities data create_raw_index`" if name == "index_path" else "Check the path"
        )
        raise NotFound(f"{name}: no such file", path=path, hint=hint)
    return path


def _positive(given: Mapping[str, Any], name: str) -> int:
    value = given.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"the setting {name!r} is not a positive integer", found=repr(value))
    return value


def _read_tokenizer(given: Mapping[str, Any]) -> Tokenizer:
    variant = given.get("variant_key")
    if given.get("component_key") != "tokenizer" or variant not in _VARIANTS:
        found = f"{given.get('component_key')}.{variant}"
        raise ConfigError("unknown tokenizer", found=found, expected=", ".join(f"tokenizer.{one}" for one in _VARIANTS))
    config = section(given, "config")
    known, read = _VARIANTS[str(variant)]
    unknown = [name for name in config if name not in known]
    if unknown:
        raise ConfigError(f"{variant} has no setting {', '.join(unknown)}", expected=", ".join(known))
    return read(config)


def _read_hf(config: Mapping[str, Any]) -> Tokenizer:
    if config.get("padding") == "max_length":
        raise ConfigError("documents are never padded", found="padding: max_length", expected="false")
    max_length = None if config.get("max_length") is None else _positive(config, "max_length")
    if config.get("truncation") and max_length is None:
        raise ConfigError("truncation without a length", expected="max_length", hint="Set it, or use truncation: false")
    named = config.get("special_tokens") or {}
    if not isinstance(named, Mapping):
        raise ConfigError("special_tokens is not a mapping", found=repr(named))
    tokens = [one for value in named.values() for one in ([value] if isinstance(value, str) else value)]
    return Tokenizer(
        text_of(config, "pretrained_model_name_or_path"),
        max_length if config.get("truncation") else None,
        tuple(tokens),
    )


def _read_sp(config: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer(text_of(config, "tokenizer_model_file"))


_VARIANTS = {"pretrained_hf_tokenizer": (_HF_KEYS, _read_hf), "pretrained_sp_tokenizer": (_SP_KEYS, _read_sp)}


# --- the work ------------------------------------------------------------------------------------------------------


def _pack(
    settings: PackSettings, source: Path, tokenizer: str, overwrite: bool, progress: Progress | None
) -> PackReport:
    def told(done: PackProgress) -> None:
        if progress is not None:
            progress(done.documents, f"{done.input_bytes / max(1, done.total_bytes):.0%}")

    def pack_to(output: Path, *, replace: bool) -> PackReport:
        return pack(
            source,
            output,
            tokenizer=tokenizer,
            to="pbin",
            jq=settings.jq_pattern,
            eos=settings.eod_token,
            workers=settings.num_cpus,
            on_error="skip",
            overwrite=replace,
            restart=overwrite,
            progress=told,
        )

    if settings.eod_token == NO_EOS:
        what, hint = "this name means 'no EOS token' in Penstock", "Use another token as eod_token"
        raise ConfigError(what, found=f"eod_token {NO_EOS}", hint=hint)
    most = settings.tokenizer.max_length
    if most is None:
        return pack_to(settings.dst_path, replace=overwrite)
    settings.dst_path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=settings.dst_path.parent) as folder:
        whole = Path(folder) / settings.dst_path.name
        report = pack_to(whole, replace=False)
        return _cut(whole, settings, tokenizer, report, overwrite=overwrite)


def _cut(whole: Path, settings: PackSettings, tokenizer: str, report: PackReport, *, overwrite: bool) -> PackReport:
    """Write documents truncated to `max_length` tokens, including special ones, as in transformers."""
    most = settings.tokenizer.max_length or 0
    spec, _ = load_tokenizer(tokenizer, LocalStore(), eos=settings.eod_token)
    if spec.around is None:
        raise ConfigError(
            "documents can't be truncated with the post-processor of this tokenizer", path=settings.tokenizer.path
        )
    eos_id = cast(int, spec.eos_id)  # an eod_token is always named
    rows = cast("TokenRows", open_rows(whole, format="pbin"))
    manifest = report.manifest or Manifest("pbin", 0, 0)
    options: dict[str, Any] = {"token_bytes": rows.dtype.itemsize, "eos_id": eos_id, "inputs": manifest.inputs}
    options |= {"tokenizer": manifest.tokenizer, "tokenizer_digest": manifest.tokenizer_digest}
    with create(settings.dst_path, format="pbin", overwrite=overwrite, **options) as writer:
        for first, stop in runs(rows):
            data, lengths = read_run(rows, first, stop)
            for document in np.split(data, np.cumsum(lengths)[:-1]):
                writer.write({"tokens": _cut_one(document, most, *spec.around, eos_id)})
        cut = writer.commit()
    return PackReport(
        **{name: getattr(report, name) for name in report.__slots__ if name not in ("output", "tokens", "manifest")},
        output=str(settings.dst_path),
        tokens=cut.num_tokens or 0,
        manifest=cut,
    )


def _cut_one(
    document: NDArray[Any], most: int, before: Sequence[int], after: Sequence[int], eos_id: int
) -> NDArray[Any]:
    """One document as the original would have it, which cuts a text's tokens and then appends the EOD token."""
    # If the last token may be the appended token or part of the text, both interpretations give the same result.
    appended = after[-1] != eos_id if after else len(document) < 2 or int(document[-2]) != eos_id
    ids = document[:-1] if appended else document
    if len(ids) > most:
        room = max(0, most - len(before) - len(after))
        ids = np.concatenate([ids[: len(before) + room], ids[len(ids) - len(after) :]])
    return ids if len(ids) and int(ids[-1]) == eos_id else np.append(ids, np.array([eos_id], document.dtype))


@contextlib.contextmanager
def _with_special_tokens(tokenizer: Tokenizer) -> Generator[str]:
    """Yield the tokenizer's path, or that of a temporary copy with additional special tokens from its vocabulary."""
    if not tokenizer.special_tokens:
        yield tokenizer.path
        return
    tokenizers = require("tokenizers", extra="tokenize")
    original = Path(tokenizer.path)
    file = str(original / "tokenizer.json")
    if not (original / "tokenizer.json").is_file():
        raise NotFound("the folder has no tokenizer.json", path=original)
    data = LocalStore().get(file)
    require_loadable(data, file)
    loaded = parse_tokenizer(data, file)
    vocabulary = loaded.get_vocab(with_added_tokens=True)
    unknown = [token for token in tokenizer.special_tokens if token not in vocabulary]
    if unknown:
        raise ConfigError("special tokens must already be in the vocabulary", path=original, found=", ".join(unknown))
    loaded.add_special_tokens(
        [tokenizers.AddedToken(token, normalized=False, special=True) for token in tokenizer.special_tokens]
    )
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / original.resolve().name
        shutil.copytree(original, copy)
        loaded.save(str(copy / "tokenizer.json"))
        yield str(copy)


@contextlib.contextmanager
def _indexed(src_path: Path, index_path: Path) -> Generator[tuple[Path, int]]:
    """Yield a file with the indexed lines, and how many lines are not indexed; the source itself if all are."""
    store = LocalStore()
    require_no_list(store, f"{src_path}.penstock", "this command packs the lines listed in an index")
    chosen = load_lines(store, str(src_path), str(index_path))
    size_bytes = store.size(str(src_path))
    lines = IndexedLines(store, str(src_path), size_bytes, validate=False)
    every: IntArray = np.concatenate([np.empty((0, 2), np.int64), *lines])
    if np.array_equal(chosen, every):
        yield src_path, 0
        return
    places = np.minimum(np.searchsorted(every[:, 0], chosen[:, 0]), max(0, len(every) - 1))
    wrong = np.flatnonzero((every[places] != chosen).any(axis=1)) if len(every) else np.arange(len(chosen))
    if len(wrong):
        raise Corrupt(
            "the index doesn't match the file, which may have changed after indexing",
            path=index_path,
            found=f"{len(wrong)} of {len(chosen)} entries that aren't whole lines, the first is {int(wrong[0])}",
            hint=remake(str(src_path)),
        )
    rows = LineRows(chosen, Place(store, str(src_path)))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / src_path.name
        with copy.open("wb") as file:
            for first, stop in runs(rows):
                file.write(read_run(rows, first, stop)[0].data)
        yield copy, len(every) - len(chosen)


def _losses(report: PackReport) -> list[str]:
    """Return the message about lines without a document."""
    if not report.num_dropped:
        return []
    shown = [f"line {one.line} ({one.reason})" for one in report.dropped[:_SHOWN]]
    more = f" and {report.num_dropped - _SHOWN:,} more" if report.num_dropped > _SHOWN else ""
    return [
        f"{report.num_dropped:,} lines contain no document and are skipped: {', '.join(shown)}{more}; Modalities would "
        "have lost their batches and all documents after the first of them"
    ]
