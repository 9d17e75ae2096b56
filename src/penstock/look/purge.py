"""`purge`: rewrite a dataset without its excluded samples, and certify which were removed, when, and by which list."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import xxhash

from penstock import __version__
from penstock._keywords import were_given
from penstock._secrets import redacted_repr
from penstock.convert.run import convert
from penstock.engine.options import Progress
from penstock.errors import ConfigError, Corrupt
from penstock.executors import AnyExecutor
from penstock.formats import files_at, find_format, formats_of_name, get_format
from penstock.formats._excluded import list_paths
from penstock.look.exclude import OPTIONS, Listed, now, open_listed, user
from penstock.look.samples import Dataset, digests_of, open_dataset, stretches
from penstock.reshape.merge import merge
from penstock.reshape.outputs import require_fitting_suffix
from penstock.store.derived import keeping_nothing
from penstock.store.exclude_list import CERTIFICATE, ExcludeList, indices_of, read_list
from penstock.store.local import output_exists
from penstock.store.place import Given, Place, dataset_at, place_of
from penstock.store.put import put
from penstock.store.unfinished import keeping
from penstock.types import IntArray, OpenOptions

_MERGED = ("jsonl", "pbin", "megatron", "flat-tokens", "mds", "csv", "tsv", "xsv", "json-shards", "webdataset")


@redacted_repr
@dataclass(frozen=True, slots=True)
class PurgeReport:
    """Result of `purge`.

    Attributes:
        path: the dataset written.
        certificate: file that lists the removed samples.
        samples: number of samples in the output.
        removed: number of removed samples.
        digest_before, digest_after: 32 hex digits over the digests of all samples, of the source and of the output.
    """

    path: str
    certificate: str
    samples: int
    removed: int
    digest_before: str
    digest_after: str


def purge(
    target: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    list: Given | None = None,
    to: str | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    executor: AnyExecutor | None = None,
    workers: int | None = None,
    **options: Any,
) -> PurgeReport:
    """Write a dataset without its excluded samples, read it back, and write a certificate next to it.

    If killed, repeat the call to finish. The original dataset is not removed. Memory: as `penstock.merge`.

    Args:
        target: path or URL of the dataset.
        output: dataset to write; the certificate is `<output>.certificate.json`.
        list: exclude list; by default the one next to the dataset.
        to: format of the output; by default that of its suffix, else the target's.
        overwrite: replace the output.
        dry_run: check everything, count what would be written, and write nothing.
        progress: called with the number of samples done and a text.
        executor: how to run the work, as in `penstock.pack`. By default this process.
        workers: number of workers, as in `penstock.pack`.
        options: `format, split, layout, eos_id, planes, trust, follow_links`, as in `penstock.open`.

    Raises:
        ConfigError: there is no list, or the output exists.
        Corrupt: the list can't be read or belongs to other data, or the output reads back differently.
    """
    asked = were_given(options)
    if unknown := sorted(set(asked) - set(OPTIONS)):
        raise ConfigError(f"unknown option {', '.join(unknown)}", expected=", ".join(OPTIONS))
    with keeping_nothing(dry_run):
        listed = open_listed(target, list, asked)
        return _purge(target, listed, place_of(output).bare(), to, asked, overwrite=overwrite, dry_run=dry_run,
                      progress=progress, executor=executor, workers=workers)  # fmt: skip


def _purge(target: Any, listed: Listed, place: Place, to: str | None, asked: dict[str, Any], **how: Any) -> PurgeReport:
    found, certificate = listed.read(), place.beside(CERTIFICATE)
    gone = _gone(listed, found, is_named="split" in asked)
    before, kept = _digests(listed.dataset, gone)
    is_new = how["overwrite"] or not place.exists()
    options = OpenOptions()
    replaces = how["overwrite"] and not how["dry_run"] and place.exists()
    files = files_at(find_format(place, None, options).name, place.path) if replaces else (place.path,)
    with keeping(place, files, replaces=replaces) as replaced:
        if is_new or not certificate.exists():
            # The verb recognises the output of a killed run and removes its other files, or raises that it exists.
            with contextlib.nullcontext() if is_new else contextlib.suppress(ConfigError):
                _write(target, place, found, to, asked, **how)
        if is_new and how["dry_run"]:
            count = len(listed.dataset) - len(gone)
            return PurgeReport(place.path, certificate.path, count, len(gone), before, kept)
        is_tars = find_format(place, to, OpenOptions()).name == "webdataset"
        split = {"split": listed.split} if is_tars and listed.split is not None else {}
        written = open_dataset(place.path, split | ({} if to is None else {"format": to}))
        after = _digests(written, None)[0]
        if not is_new and (certificate.exists() or after != kept):  # else a run was killed before its certificate
            raise output_exists(place.path)
        if after != kept:
            what = "the purged dataset differs when read back, so it was deleted"
            made = files_at(find_format(place, to, options).name, place.path)
            replaced.paths = tuple(dict.fromkeys((*replaced.paths, *made, *(f"{one}.penstock" for one in made))))
            replaced.restore()
            raise Corrupt(what, path=place.path, found=after, expected=kept)
    report = PurgeReport(place.path, certificate.path, len(written), len(gone), before, after)
    if not how["dry_run"]:
        put(certificate.store, certificate.path, _certificate(report, listed, found))
    return report


def _gone(listed: Listed, found: ExcludeList, *, is_named: bool) -> IntArray:
    """Return int64[k], increasing: the samples to remove. Raise an error if there are none, or for another list."""
    entries = found.of(listed.split)
    if not entries:
        what = "nothing is excluded: there is nothing to purge"
        raise ConfigError(what, path=listed.dataset.place.path, found=f"no list at {listed.list_path}")
    others = sorted({one.split or "" for one in found.entries} - {listed.split or ""})
    if others and not is_named:
        what = "the list excludes samples of several splits, but a certificate covers one"
        hint = "Choose one with --split (split=), and purge each into a separate dataset"
        raise ConfigError(what, path=listed.list_path, found=", ".join([listed.split or "", *others]), hint=hint)
    wrong = next((one for one in entries if one.dataset != listed.fingerprint), None)
    if wrong is not None:
        what = "the exclude list belongs to different data"
        raise Corrupt(what, path=listed.list_path, found=wrong.dataset, expected=listed.fingerprint)
    return indices_of(entries)


def _write(target: Any, place: Place, found: ExcludeList, to: str | None, asked: dict[str, Any], **how: Any) -> None:
    """Write the output by the verb that copies such data as it is stored."""
    source = dataset_at(target, follow_links=bool(asked.get("follow_links")))
    name = find_format(source, asked.get("format"), OpenOptions(layout=asked.get("layout"))).name
    given: dict[str, Any] = {**asked, "format": name}
    if to is None and not formats_of_name(place.path):
        require_fitting_suffix(place, name)
    if name == "webdataset":
        if found.path != f"{source.bare().path}/.penstock.exclude.jsonl":
            raise ConfigError(
                "tar shards can only be purged with the list next to them", path=source.path, found=found.path
            )
        kept_split = {key: value for key, value in asked.items() if key in ("split", "follow_links")}
        kept_split |= {key: how[key] for key in ("overwrite", "dry_run", "progress")}
        merge([target], place, format=name, **kept_split)
    elif name in _MERGED or get_format(name).traits.tokens:
        wanted = to or (None if formats_of_name(place.path) else name)
        if not get_format(wanted or formats_of_name(place.path)[0]).traits.write:
            hint = "Choose an output that can be written, such as NEW.pbin, or a format with --to (to=)"
            raise ConfigError(f"{name} can't be written", path=place.path, hint=hint)
        merge([target], place, to=wanted, excludes=found, **given, **how)
    else:
        how = {key: value for key, value in how.items() if key not in ("executor", "workers")}
        source_split = {"source_split": given.pop("split")} if "split" in given else {}
        convert(target, place.path, to=to or (None if formats_of_name(place.path) else name), excludes=found,
                **given, **source_split, **how)  # fmt: skip


def _digests(dataset: Dataset, gone: IntArray | None) -> tuple[str, str]:
    """Return 32 hex digits over all samples, and over those that aren't removed."""
    every, rest = xxhash.xxh3_128(), xxhash.xxh3_128()
    for task in stretches(dataset):
        start, stop = task.start, task.stop
        found = digests_of(dataset, start, stop, with_keys=True)
        every.update(found.tobytes())
        if gone is not None:
            here = gone[(gone >= start) & (gone < stop)] - start
            rest.update(np.delete(found, here, axis=0).tobytes())
    return every.hexdigest(), rest.hexdigest()


def _certificate(report: PurgeReport, listed: Listed, found: ExcludeList) -> bytes:
    source, fingerprint = listed.dataset.place, listed.fingerprint
    beside = list_paths(listed.dataset.source) if listed.place is None else ()
    lists = [read_list(source.store, one) for one in beside] or [found]
    said = {
        "version": 1,
        "time": now(),
        "who": user(),
        "tool": f"penstock {__version__}",
        "source": {"path": source.shown, "fingerprint": fingerprint, "digest": report.digest_before},
        "output": {"path": place_of(report.path).shown, "samples": report.samples, "digest": report.digest_after},
        "lists": [
            {
                "path": None if one.path is None else place_of(one.path).shown,
                "digest": one.digest,
                "entries": len(one.entries),
            }
            for one in lists
        ],
        "split": listed.split,
        "removed": [msgspec.to_builtins(one) for one in found.of(listed.split)],
    }
    return msgspec.json.format(msgspec.json.encode(said), indent=1) + b"\n"
