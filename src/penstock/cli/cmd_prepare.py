"""`penstock prepare DIR | FILE.jsonl`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli._energon import (
    MediaChoice,
    as_energon,
    closing,
    media_options,
    ratio_option,
    refusal,
    refuse_given,
    take_media,
)
from penstock.cli._executors import modest_executor_options
from penstock.cli._output import emit, follow_links_option, human_bytes, json_option, note, progress
from penstock.cli._sharing import end_unfinished, keeping, missing_text, restart_option, sharing_options

if TYPE_CHECKING:
    from penstock.prepare.energon.job import PrepareSummary

_SHOWN = 10
_SHARING = ("part", "finish", "no_work", "restart")
_OF_SHARDS = (
    "split_ratio", "split_parts", "exclude", "shuffle_tars", "sample_type", "field_map", "dataset_yaml_name",
    "skip_dataset_yaml", "tar_index_only", "no_sqlite", "media_metadata", "by_extension", "by_glob", "by_header",
    "exact", "headers_only", "fix_duplicates", *_SHARING,
)  # fmt: skip


@click.command()
@click.argument("path")
@click.option("--ratio", "split_ratio", metavar="A,B,C", help="Relative sizes of train, val and test, such as 8,1,1.")
@click.option(
    "--split-parts",
    multiple=True,
    metavar="NAME:REGEX",
    help="Shards of a split, by a regular expression matched at the start of their names; can be given several times.",
)
@click.option("--exclude", metavar="REGEX", help="Skip shards if this regular expression matches their path.")
@click.option("--shuffle-tars", is_flag=True, help="Shuffle the shards before splitting them by ratio.")
@click.option("--sample-type", metavar="NAME", help="Sample type: one of Energon's, or CrudeWebdataset.")
@click.option("--field-map", metavar="JSON", help='Part that each field is read from, such as \'{"image": "jpg"}\'.')
@click.option(
    "--dataset-yaml-name",
    default="dataset.yaml",
    show_default=True,
    metavar="NAME",
    help="Name of the dataset.yaml file to write.",
)
@click.option("--skip-dataset-yaml", is_flag=True, help="Don't write dataset.yaml.")
@click.option("--tar-index-only", is_flag=True, help="Only rebuild the indexes of prepared shards.")
@click.option(
    "--no-sqlite",
    is_flag=True,
    help="Don't write index.sqlite, which only Energon reads; Penstock finds keys in index.keys.",
)
@click.option(
    "--media-metadata",
    is_flag=True,
    help="Index media metadata; selects files by extension unless another option selects them.",
)
@media_options
@modest_executor_options
@restart_option
@sharing_options
@click.option("--overwrite", is_flag=True, help="Replace existing metadata.")
@click.option("--non-interactive", is_flag=True, help="Don't ask questions, even on a terminal.")
@follow_links_option
@json_option
@click.pass_context
def command(context: click.Context, path: str, non_interactive: bool, as_json: bool, **options: Any) -> None:
    """Write Energon metadata for a directory of tar shards, or the index of a JSONL file.

    Shards are only read. On a terminal, asks for options that aren't given.

    To distribute the work, run it with --part on each machine, with PATH on shared storage, then once with --finish.
    """
    from penstock.store.local import not_found
    from penstock.store.place import place_of

    place = place_of(path)
    if place.is_local and not (place.exists() or place.is_folder()):  # before any word of options
        raise not_found(path)
    if path.endswith(".jsonl"):
        refuse_given(context, _OF_SHARDS, "A JSONL file has no shards, splits or dataset.yaml")
        _prepare_jsonl(path, options, as_json)
        return
    if path.endswith((".yaml", ".yml")):
        refuse_given(
            context, (*_OF_SHARDS, "workers", "executor", "overwrite"), "A metadataset is only checked, by opening it"
        )
        _check_metadataset(path, as_json, options["follow_links"])
        return
    media = take_media(options)
    if media is None and options["media_metadata"]:
        media = ("extension", None)
    if media is None:
        refuse_given(context, ("exact", "headers_only"), "No media metadata is requested")
    if options["skip_dataset_yaml"]:
        refuse_given(context, ("sample_type", "field_map", "dataset_yaml_name"), "dataset.yaml isn't written")
    if options["tar_index_only"] and media is not None:
        raise click.UsageError("--tar-index-only doesn't index media metadata: use `penstock prepare-media`.")
    if options["tar_index_only"]:
        refuse_given(
            context, ("shuffle_tars", "overwrite", "dataset_yaml_name"), "--tar-index-only keeps the list of shards"
        )
    shared = options["part"] is not None or options["finish"]
    if not options["tar_index_only"] and not as_json and not non_interactive and not shared:
        if _on_terminal():
            _prepare(path, options, media, as_json, ask=True, confirm=True)
            return
        if as_energon() and _leaves_questions(options):
            _prepare(path, options, media, as_json, ask=True, confirm=False)
            return
    if options["split_ratio"] is None:
        refuse_given(context, ("shuffle_tars",), f"Shards are shuffled only with {ratio_option()}")
    if options["sample_type"] is None:
        refuse_given(context, ("dataset_yaml_name",), "dataset.yaml isn't written without --sample-type")
    _prepare(path, options, media, as_json, ask=False, confirm=False)


def _leaves_questions(options: dict[str, Any]) -> bool:
    """Whether answers may be piped in: how shards are split, or what samples are."""
    has_splits = options["split_ratio"] is not None or bool(options["split_parts"])
    return not has_splits or (options["sample_type"] is None and not options["skip_dataset_yaml"])


def _on_terminal() -> bool:
    import sys

    return sys.stdin.isatty() and sys.stdout.isatty()


def _prepare(
    path: str, options: dict[str, Any], media: MediaChoice | None, as_json: bool, *, ask: bool, confirm: bool
) -> None:
    import msgspec

    from penstock.cli._prepare_assistant import Answers, ask_all
    from penstock.formats.samples.webdataset.nvmeta import DATASET_YAML, meta_path
    from penstock.formats.samples.webdataset.splits import parse_ratio
    from penstock.prepare.energon.guess import parse_patterns
    from penstock.prepare.energon.run import prepare_webdataset
    from penstock.prepare.media.rows import ShardMedia, media_depth, media_filter
    from penstock.store.place import dataset_at
    from penstock.store.put import require_writable

    folder = dataset_at(path, follow_links=options["follow_links"]).bare()
    require_writable(folder.store, folder.path)

    if ask:
        answers = ask_all(path, options, confirm=confirm)
    else:
        _require_splits(path, options)
        ratio = None if options["split_ratio"] is None else parse_ratio(options["split_ratio"])
        answers = Answers(ratio, parse_patterns(options["split_parts"]) or None, None, options["overwrite"])
    if options["sample_type"] is not None and not options["skip_dataset_yaml"]:
        answers.dataset = _dataset_of(path, options)
    elif options["field_map"] is not None:
        raise refusal("--field-map needs --sample-type.")
    depth = media_depth(exact=options["exact"], headers_only=options["headers_only"])
    with keeping(path), progress("prepare", total=None, unit="shards") as advance:
        summary = prepare_webdataset(
            path,
            split_ratio=answers.split_ratio,
            split_parts=answers.split_parts,
            exclude=options["exclude"],
            workers=options["workers"],
            executor=options["executor"],
            tar_index_only=options["tar_index_only"],
            shuffle_tars=options["shuffle_tars"],
            overwrite=answers.overwrite,
            dataset=answers.dataset,
            sqlite=not options["no_sqlite"],
            follow_links=options["follow_links"],
            media=None if media is None else ShardMedia(media_filter(*media), depth),
            part=options["part"],
            finish=options["finish"],
            no_work=options["no_work"],
            restart=options["restart"],
            progress=lambda done, total: advance(done, total=total),
        )
    if not as_json:
        for warning in summary.warnings:
            note(f"warning: {warning}")
    is_done = not ask and not options["skip_dataset_yaml"] and not summary.missing
    if is_done and not folder.store.exists(meta_path(folder.path, DATASET_YAML)):
        note(
            "no dataset.yaml is written without --sample-type: Penstock reads plain samples, but Energon needs the file"
        )
    emit(msgspec.to_builtins(summary), as_json=as_json, text=lambda: _text(summary))
    end_unfinished(summary.missing)


def _require_splits(path: str, options: dict[str, Any]) -> None:
    """Require that splits are given, or there already: without a terminal nothing can be asked."""
    from penstock.formats.samples.webdataset.nvmeta import SPLIT_YAML, meta_path
    from penstock.store.place import place_of

    if options["split_ratio"] is not None and options["split_parts"]:
        raise click.UsageError(f"Give either {ratio_option()} or --split-parts, not both.")
    if options["tar_index_only"] or options["split_ratio"] is not None or options["split_parts"]:
        return
    place = place_of(path)
    if place.is_folder() and not place.store.exists(meta_path(place.path, SPLIT_YAML)):
        raise refusal(f"How should the shards be split? Give {ratio_option()} 8,1,1 or --split-parts NAME:REGEX.")


def _dataset_of(path: str, options: dict[str, Any]) -> Any:
    """The contents of `dataset.yaml` by the options, checked against the first samples."""
    import json

    from penstock.prepare.energon.run import dataset_of

    fields: Any = None
    if options["field_map"] is not None:
        try:
            fields = json.loads(options["field_map"])
        except ValueError as error:
            raise refusal(f"--field-map: invalid JSON: {error}") from None
        if not isinstance(fields, dict) or not all(isinstance(one, str) for one in fields.values()):
            raise refusal('--field-map: not a map of strings such as {"image": "jpg"}')
    dataset, shown = dataset_of(
        path,
        options["sample_type"],
        fields,
        options["dataset_yaml_name"],
        options["exclude"],
        options["follow_links"],
    )
    for field, text in shown.items():
        note(f"{field}: {fields[field]} -> {text}")
    return dataset


def _text(summary: PrepareSummary) -> str:
    if summary.missing:
        return missing_text(summary.path, summary.missing)
    samples = f"{len(summary.shard_counts):,} shards, {summary.num_samples:,} samples"
    if summary.was_complete:
        return f"{summary.path}: already complete: {samples}"
    share = "" if summary.part is None else f"part {summary.part[0]} of {summary.part[1]}: "
    lines = [f"{summary.path}: {share}{samples}, {summary.num_parts:,} parts, {human_bytes(summary.size_bytes)}"]
    if summary.num_reused:
        lines.append(f"  {summary.num_reused:,} shards were done in an earlier run")
    for split, (shards, samples) in summary.splits.items():
        share = samples / summary.num_samples if summary.num_samples else 0
        lines.append(f"  {split}: {shards:,} shards, {samples:,} samples, {share:.1%}")
    if summary.part is not None:
        return "\n".join(lines)
    wrote = [f".nv-meta/{name}" for name in summary.wrote if not name.endswith(".tar.idx")]
    indexes = len(summary.wrote) - len(wrote)
    if indexes:
        wrote.append(f"{indexes:,} shard indexes")
    return "\n".join([*lines, f"  wrote {', '.join(wrote) or 'nothing'}"]) + closing("Done")


def _prepare_jsonl(path: str, options: dict[str, Any], as_json: bool) -> None:
    """Write the index of a JSONL file by Energon's rule; like Energon, over one that is there."""
    import msgspec

    from penstock.prepare.jsonl_index import build_index

    report = build_index(
        path, flavor="energon", overwrite=True, workers=options["workers"], executor=options["executor"]
    )
    text = f"{report.index_path}: {report.num_lines:,} samples of {human_bytes(report.size_bytes)}"
    text += closing(f"Done. Found {report.num_lines} samples.")
    emit(msgspec.to_builtins(report), as_json=as_json, text=text)


def _check_metadataset(path: str, as_json: bool, follow_links: bool) -> None:
    """Open a metadataset to check it: it needs no preparation here, as joins are made when it is opened."""
    from penstock.recipe.metadataset import open_metadataset

    opened = open_metadataset(path, follow_links=follow_links)
    text = f"{path}: valid. A metadataset needs no preparation: joins are computed when it is opened\n{opened}"
    emit({"path": path, "opens": True}, as_json=as_json, text=text)
