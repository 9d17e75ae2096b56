"""Commands as functions: each option of a command is an argument of its function.

Commands that only make sense on a command line have no function: `demo`, `doctor`, `completion`, `mount`, and those of
`energon` and `modalities`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from penstock._facade import facade
from penstock._keywords import Opening, Preparing, Purging, Running, were_given

if TYPE_CHECKING:
    from penstock.check import repair as repair
    from penstock.check import verify as verify
    from penstock.convert import convert as convert
    from penstock.engine.status import WorkStatus
    from penstock.look.diff import diff as diff
    from penstock.look.exclude import ExcludeReport
    from penstock.look.find import find as find
    from penstock.look.lineage import lineage as lineage
    from penstock.look.purge import PurgeReport
    from penstock.prepare.energon.job import PrepareSummary
    from penstock.prepare.jsonl_index import IndexReport
    from penstock.prepare.jsonl_index import index as index
    from penstock.prepare.media.run import prepare_media as prepare_media
    from penstock.prepare.tokens.pipeline import pack as pack
    from penstock.reshape.filter import filter as filter
    from penstock.reshape.merge import merge as merge
    from penstock.reshape.shuffle import shuffle as shuffle
    from penstock.reshape.split import split as split
    from penstock.store.exclude_list import ExcludeList
    from penstock.store.place import Data, Given
    from penstock.view.report import Report

_SHOWN = 5
"""Samples that `head` returns by default."""

_LISTED = 1000
"""Positions that `explain` returns by default, other than those of one step."""

_find, _names = facade(__name__)
_TYPES = ("ExcludeList", "ExcludeReport", "Data", "Given", "IndexReport", "PrepareSummary", "PurgeReport", "Report",
          "WorkStatus")  # fmt: skip
_OWN = ("cache", "exclude", "explain", "head", "info", "plan", "prepare", "purge", "report", "stage", "status", "view")

__all__ = sorted({*_names()} - {*_TYPES} | {*_OWN})  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    return _find(name)


def __dir__() -> list[str]:
    return __all__


def _require_at_least(least: int, name: str, number: int | None) -> None:
    from penstock.errors import ConfigError

    if number is not None and number < least:
        raise ConfigError(f"{name} is out of range", found=number, expected=f"{least} or more")


def prepare(
    path: Given, *, ratio: Mapping[str, float] | Sequence[float] | str | None = None, **options: Unpack[Preparing]
) -> PrepareSummary | IndexReport:
    """Write Energon's metadata for tar shards, or the index of a JSONL file.

    Args:
        path: directory of the shards, or a file that ends with `.jsonl`.
        ratio: relative sizes of train, val and test, such as `"8,1,1"`.
        options: options of `penstock.prepare`.

    Examples:
        >>> from penstock import verbs
        >>> summary = verbs.prepare("tars", sample_type="CrudeWebdataset", ratio="1,0,0")
    """
    from penstock.errors import ConfigError
    from penstock.prepare.energon.run import prepare

    if ratio is not None and options.get("split_ratio") is not None:
        raise ConfigError("ratio and split_ratio mean the same", hint="Leave out split_ratio=")
    more: Any = options if ratio is None else {**options, "split_ratio": ratio}
    return prepare(path, **more)


def status(output: Given, *, sweep: bool = False) -> WorkStatus:
    """Return the progress of an interrupted or distributed job.

    Args:
        output: path or URL of the output of the job.
        sweep: remove leftovers of finished jobs first.

    Raises:
        NotFound: there is neither an output nor work on it.

    Examples:
        >>> import penstock as ps
        >>> options = {"tokenizer": "tokenizer.json", "eos": "<|endoftext|>", "executor": "inline"}
        >>> report = ps.pack("docs.jsonl", "docs.pbin", part=(0, 1), **options)
        >>> status = ps.status("docs.pbin")
        >>> status.complete, status.tasks, status.done
        (False, 1, 1)
    """
    from penstock.engine import status
    from penstock.store.place import place_of

    if sweep:
        status.sweep(place_of(output))
    return status.status_of(place_of(output))


def info(path: str | os.PathLike[str], *, format: str | None = None, **options: Unpack[Opening]) -> dict[str, Any]:
    """Return counts, sizes and schema of a dataset as plain values, like `penstock info --json`.

    Args:
        path: dataset in any format.
        format: format of the dataset; detected by default.
        options: options of `penstock.open`.

    Raises:
        NotFound: there is nothing at `path`.
        FormatError: the dataset can't be opened.

    Examples:
        >>> import penstock as ps
        >>> facts = ps.info("corpus.pbin")
        >>> facts["format"], facts["samples"], facts["tokens"], facts["eos_id"]
        ('pbin', 6, 45, 0)
    """
    import msgspec

    from penstock.check import summarise
    from penstock.formats._opening import skipping_invalid_lines

    with skipping_invalid_lines():  # to name invalid lines once
        found = summarise(path, format=format, **options)
        if "tokens" in found:
            return found
        from penstock.view.facts.lengths import lengths_of  # these import the modules of runs
        from penstock.view.facts.opening import open_target
        from penstock.view.facts.samples import parts_of_samples

        opened = open_target(path, **were_given({**options, "format": format}))
        is_local = opened.place is None or opened.place.is_local
        lengths = lengths_of(opened.source, found["samples"], size_bytes=found["size_bytes"], is_local=is_local)
        parts = parts_of_samples(opened, found["samples"]) if found["format"] == "webdataset" else None
        more = {"sample_lengths": lengths, "parts": parts}
        return found | {name: msgspec.to_builtins(one) for name, one in more.items() if one is not None}


def head(
    path: Data, *, limit: int | None = None, start: int | None = None, index: int | None = None, key: str | None = None,
    tokenizer: str | None = None, all: bool = False, format: str | None = None, **options: Unpack[Opening],
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the first samples of a dataset, or the samples from `start` on.

    Samples are those of `penstock.open(path)[i]`.

    Args:
        path: dataset in any format.
        limit: number of samples; by default 5, or 1 with `index` or `key`.
        start: index of the first sample, from 0.
        index: index of the only sample, from 0.
        key: key of the only sample.
        tokenizer: add the field `text` to token documents, decoded with this tokenizer.
        all: keep fields that begin with `__`; by default only `__key__` is kept.
        format: format of the dataset; detected by default.
        options: options of `penstock.open`.

    Raises:
        ConfigError: there is no sample with this index, a number is negative, or two of `start`, `index` and `key` are
            given.
        NotFound: there is no sample with this key.

    Examples:
        >>> import penstock as ps
        >>> [sample["id"] for sample in ps.head("docs.jsonl", limit=2)]
        ['a1', 'a2']
    """
    from penstock.errors import ConfigError
    from penstock.formats import open_source
    from penstock.look.head import decoder, first_of, visible

    if sum(one is not None for one in (start, index, key)) > 1:
        raise ConfigError("start, index and key can't be combined", hint="Give one of start=, index= and key=")
    for name, number in (("limit", limit), ("start", start), ("index", index)):
        _require_at_least(0, name, number)
    given: dict[str, Any] = {"format": format, **options}
    source = open_source(path if isinstance(path, str | os.PathLike) else cast(Any, path), **given)
    decode, first = decoder(tokenizer), first_of(source, start, index, key)
    count = limit if limit is not None else _SHOWN if index is None and key is None else 1
    stop = min(first + count, len(source))
    return [visible(source[at], decode, show_all=all) for at in range(first, stop)]


def report(target: Data, output: Given, *, limit: int = 12, **options: Any) -> Report:
    """Write a report on a dataset or a run as one HTML page.

    Args:
        target: dataset, recipe or metadataset.
        output: path or URL of the page.
        limit: number of samples to show, at most 48.
        options: options of `penstock.report`.

    Examples:
        >>> from penstock import verbs
        >>> page = verbs.report("docs.jsonl", "docs.html", limit=3)
    """
    from penstock.view.report import report

    return report(target, output, examples=limit, **options)


def view(
    targets: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, host: str = "127.0.0.1", port: int = 0,
    no_open: bool = False, **options: Any,
) -> None:  # fmt: skip
    """Show datasets and runs in a web browser until the process is interrupted.

    Args:
        targets: one or several datasets, recipes or directories of them.
        host: address to listen on.
        port: port to listen on; 0 for any free port.
        no_open: print the address instead of opening a browser.
        options: `split, format, layout, eos_id, flavor, excludes, planes, global_batch, state, tokenizer, trust` and
            `follow_links`, as on the command line.

    Examples:
        >>> from penstock import verbs
        >>> verbs.view("docs.jsonl", port=8080)  # doctest: +SKIP
    """
    import webbrowser

    from penstock.view.pages.serve import view
    from penstock.view.pages.targets import Settings

    def ready(url: str) -> None:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        if not no_open:
            webbrowser.open(url)

    paths = (targets,) if isinstance(targets, str | os.PathLike) else targets
    view(tuple(os.fspath(one) for one in paths), host=host, port=port, settings=Settings(**options), ready=ready)


def exclude(
    target: Data, *, excludes: Given | None = None, show: bool = False, **options: Any
) -> ExcludeReport | ExcludeList:
    """Add samples to the exclude list next to a dataset, or return the list.

    Args:
        target: dataset in any format.
        excludes: file of the exclude list; by default the one next to the data.
        show: return the exclude list without changing it.
        options: options of `penstock.exclude`; with `show` only those of `penstock.open`.

    Examples:
        >>> from penstock import verbs
        >>> verbs.exclude("docs.jsonl", key="a3", reason="requested by the author").added
        1
        >>> len(verbs.exclude("docs.jsonl", show=True).entries)
        1
    """
    from penstock.errors import ConfigError
    from penstock.look.exclude import OPTIONS, exclude, excluded_samples

    if show:
        if wrong := [name for name in options if name not in OPTIONS]:
            what = "show=True returns the list and can't be combined with options that select or change samples"
            raise ConfigError(what, found=", ".join(wrong), hint="Leave them out")
        return excluded_samples(target, list=excludes, **options)
    return exclude(cast(Any, target), list=excludes, **options)


def purge(target: Given, output: Given, *, excludes: Given | None = None, **options: Unpack[Purging]) -> PurgeReport:
    """Rewrite a dataset without its excluded samples and issue a removal certificate.

    The certificate is `<output>.certificate.json`. The original dataset isn't changed. If interrupted, repeat the call
    to resume.

    Args:
        target: dataset in any format.
        output: dataset to write.
        excludes: exclude list; by default the one next to the data.
        options: `to, overwrite, dry_run, progress, executor, workers`, and options of `penstock.open`: `format, split,
            layout, eos_id, planes, trust, follow_links`.

    Returns:
        A report with `samples`, `removed` and `certificate`.

    Raises:
        ConfigError: there is no exclude list, or the output exists.
        Corrupt: the list is unreadable or belongs to other data, or the output reads back differently.

    Examples:
        >>> import penstock as ps
        >>> report = ps.exclude("docs.jsonl", key="a3", reason="requested by the author")
        >>> report = ps.purge("docs.jsonl", "clean.jsonl")
        >>> report.samples, report.removed
        (5, 1)
    """
    from penstock.look.purge import purge

    return purge(cast(Any, target), cast(Any, output), list=excludes, **options)


def plan(recipe: Given, *, steps: int | None = None, **options: Unpack[Running]) -> dict[str, Any]:
    """Return the planned reads of a run over a recipe, like `penstock plan --json`.

    Args:
        recipe: recipe or metadataset.
        steps: number of steps of the run; by default until every source has been read once.
        options: `split, mode, global_batch, seed, world, lanes, trust` and `follow_links`, as on the command line.

    Raises:
        ConfigError: the recipe doesn't support an option.
        FormatError: the file isn't a recipe.

    Examples:
        >>> import penstock as ps
        >>> plan = ps.plan("recipe.json", global_batch=2, steps=10)
        >>> plan["steps"], plan["samples"], plan["global_batch"]
        (10, 20, 2)
    """
    from penstock.load.plan import plan
    from penstock.view.facts.opening import open_run

    for name, number in {"steps": steps, **options}.items():
        if name in ("steps", "global_batch", "world", "lanes"):
            _require_at_least(1, name, cast(Any, number))
    run = open_run(recipe, **options)
    return plan(run.data, global_batch=run.global_batch, world=run.world, steps=steps)


def explain(
    recipe: Given, *, step: int | None = None, rank: int | None = None,
    state: str | os.PathLike[str] | Mapping[str, Any] | None = None, document: str | None = None,
    excluded: bool = False, limit: int | None = None, **options: Unpack[Running],
) -> dict[str, Any]:  # fmt: skip
    """Return which samples a step read, or which steps read a document, like `penstock explain --json`.

    Args:
        recipe: recipe or metadataset.
        step: step to explain, from 0; with `document`, the last step to search.
        rank: only the samples of this data-parallel rank.
        state: saved state of the run, or path of its JSON file.
        document: key of a sample, or number of a document.
        excluded: return the steps before `state` that read samples which are now excluded.
        limit: largest number of positions to return; by default all samples of a step, and 1000 otherwise.
        options: `split, mode, global_batch, seed, world, lanes, trust` and `follow_links`, as on the command line.

    Raises:
        ConfigError: neither `step`, `document` nor `excluded` is given, or `excluded` with one of the others or `rank`;
            a number is out of range, or the number of samples per step is unknown.
        ResumeMismatch: the state belongs to another stream.

    Examples:
        >>> import penstock as ps
        >>> found = ps.explain("recipe.json", step=3, global_batch=2)
        >>> [(sample["path"], sample["documents"]) for sample in found["samples"]]
        [(['text'], [[2, 5, 7], [3, 0, 6]]), (['text'], [[0, 0, 5], [1, 0, 3]])]
    """
    from penstock.errors import ConfigError
    from penstock.load.excluded import explain_excluded
    from penstock.load.explain import explain_document, explain_step, run_of, steps_to_search
    from penstock.view.facts.opening import open_run, read_state

    if excluded and (step, rank, document) != (None, None, None):
        raise ConfigError("excluded can't be combined with step, rank or document", hint="Leave them out")
    for name, number in {"step": step, "limit": limit, **options}.items():
        if name in ("step", "limit", "global_batch", "world", "lanes"):
            _require_at_least(0 if name == "step" else 1, name, cast(Any, number))
    most = _LISTED if limit is None else limit
    opened = open_run(recipe, **options)
    saved = read_state(state) if isinstance(state, str | os.PathLike) else state
    run = run_of(opened.data, opened.global_batch, opened.world, saved)
    if excluded:
        return explain_excluded(run, most)
    if document is None:
        if step is None:
            raise ConfigError("nothing to explain", hint="Give step=, document= or excluded=True")
        found = explain_step(run, step, rank, opened.world)
        return found if limit is None else found | {"of": len(found["samples"]), "samples": found["samples"][:limit]}
    found = explain_document(run, document, steps_to_search(run, step), most, opened.world)
    return found | {"samples": [one for one in found["samples"] if rank in (None, one["rank"])]}


def stage(
    recipe: Given, *, hosts: int, host: int, steps: int | None = None, split: str | None = None,
    mode: Literal["train", "val"] | None = None, global_batch: int | None = None, seed: int | None = None,
    world: int | None = None, lanes: int | None = None, trust: bool = False, follow_links: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Download the data that this host will read to the cache.

    Args:
        recipe: recipe, metadataset or dataset; a dataset is read in shuffled order if `seed` is given.
        hosts: number of hosts of the run.
        host: number of this host, from 0.
        steps: number of steps of the run; by default until every source has been read once.
        split: split of a metadataset or dataset.
        mode: mode of a metadataset: `"train"` or `"val"`.
        global_batch: samples per step.
        seed: seed of the order, if the recipe has none.
        world: number of data-parallel ranks; by default one per host.
        lanes: lanes of the order, if the recipe has none.
        trust: import functions named by the recipe, and run code that comes with the data.
        follow_links: read datasets through links that lead out of their directories.

    Raises:
        ConfigError: the hosts don't divide the ranks, or the cache is too small.

    Examples:
        >>> import penstock as ps
        >>> staged = ps.stage("recipe.json", hosts=1, host=0, global_batch=2, steps=10)
        >>> staged["samples"], staged["fetched_bytes"]
        (20, 0)
    """
    from penstock.formats import open_source
    from penstock.load.stage import stage
    from penstock.view.facts.opening import is_recipe, open_run, ordered

    opening: dict[str, Any] = {"split": split, "trust": trust, "follow_links": follow_links}
    if is_recipe(recipe):
        batch: dict[str, Any] = {"global_batch": global_batch, "world": world}
        run = open_run(recipe, mode=mode, seed=seed, lanes=lanes, **batch, **opening)
        data, global_batch, world = run.data, run.global_batch, run.world
    else:
        data = ordered(open_source(cast(Any, recipe), **opening), shuffled=seed is not None, seed=seed, lanes=lanes)
    return stage(data, hosts=hosts, host=host, world=world, global_batch=global_batch, steps=steps)


def cache(*, trim: int | None = None, clear: bool = False) -> dict[str, Any]:
    """Return the contents of the cache, after trimming or clearing it.

    Args:
        trim: remove the least recently used entries until at most this many bytes are left.
        clear: remove all entries that aren't being written.

    Returns:
        `path`, `removed_bytes`, `size_bytes`, and for each of `folders` its `name`, `files` and `size_bytes`.

    Examples:
        >>> import penstock as ps
        >>> sorted(ps.cache())
        ['folders', 'path', 'removed_bytes', 'size_bytes']
    """
    from penstock.errors import ConfigError
    from penstock.store.cache_room import cache_use, trim_cache
    from penstock.store.derived import cache_folder

    _require_at_least(0, "trim", trim)
    if trim is not None and clear:
        raise ConfigError("clear and trim can't be combined", hint="Give one of the two")
    removed_bytes = 0 if trim is None and not clear else trim_cache(trim or 0)
    found = cache_use()
    return {
        "path": cache_folder(),
        "removed_bytes": removed_bytes,
        "size_bytes": sum(one.size_bytes for one in found),
        "folders": [{"name": one.name, "files": one.files, "size_bytes": one.size_bytes} for one in found],
    }
