"""Commands on WebDatasets: prepare with its assistant, and prepare-media."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli._options import BY_SIZE, EXECUTOR, MEDIA, as_energon, refusal, refuse_given, takes, wants_json
from penstock.cli._output import note, progress
from penstock.cli._reports import emit, end_unfinished, keeping, missing_text, say, table
from penstock.view.draw.words import counted, human_bytes

if TYPE_CHECKING:
    from penstock.formats.samples.webdataset.find import PeekedSample
    from penstock.formats.samples.webdataset.splits import Assignment
    from penstock.prepare.energon.job import PrepareSummary
    from penstock.prepare.energon.plan import EnergonPlan

Value = TypeVar("Value")
MediaChoice = tuple[str, str | None]
"""How media are found: extension, glob or header; and the patterns of glob."""

_SHOWN = 10
_SAMPLES = 3
_SHOWN_SHARDS = 4
_SHARING = ("part", "finish", "no_work", "restart")
_RUN_OPTIONS = ("workers", "executor", "follow_links", *_SHARING)
_OF_SHARDS = (
    "split_ratio", "split_parts", "exclude", "shuffle_tars", "sample_type", "field_map", "dataset_yaml_name",
    "skip_dataset_yaml", "tar_index_only", "no_sqlite", "media_metadata", *MEDIA.split(), "fix_duplicates", *_SHARING,
)  # fmt: skip


def _ratio_option() -> str:
    """Return the name of the option for the ratio of splits, which Energon spells differently."""
    return "--split-ratio" if as_energon() else "--ratio"


def _closing(words: str) -> str:
    """Return Energon's last line, which scripts look for; empty for our own command."""
    return f"\n{words}" if as_energon() else ""


def _take_media(options: dict[str, Any]) -> MediaChoice | None:
    """Take the choice of media files out of `options`; None if none is given."""
    if options["exact"] and options["headers_only"]:
        raise click.UsageError("Give either --exact or --headers-only.")
    by_extension, by_header = options.pop("by_extension"), options.pop("by_header")
    patterns: str | None = options.pop("by_glob")
    given = [
        *(["extension"] if by_extension else []),
        *(["glob"] if patterns is not None else []),
        *(["header"] if by_header else []),
    ]
    if len(given) > 1:
        raise click.UsageError("Give only one way to find media: by extension, by glob or by header.")
    return (given[0], patterns) if given else None


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
@takes(f"{MEDIA} {EXECUTOR} restart part finish no_work overwrite", overwrite="Replace existing metadata.", **BY_SIZE)
@click.option("--non-interactive", is_flag=True, help="Don't ask questions, even on a terminal.")
@takes("follow_links")
def prepare(path: str, non_interactive: bool, **options: Any) -> None:
    """Write Energon metadata for a directory of tar shards, or the index of a JSONL file.

    Shards are only read. On a terminal, asks for options that aren't given.

    To distribute the work, run it with --part on each machine, with PATH on shared storage, then once with --finish.
    """
    from penstock.store.local import not_found
    from penstock.store.place import place_of

    place = place_of(path)
    if place.is_local and not (place.exists() or place.is_folder()):
        raise not_found(path)
    if path.endswith(".jsonl"):
        refuse_given(_OF_SHARDS, "A JSONL file has no shards, splits or dataset.yaml")
        _prepare_jsonl(path, options)
        return
    if path.endswith((".yaml", ".yml")):
        refuse_given((*_OF_SHARDS, "workers", "executor", "overwrite"), "A metadataset is only checked, by opening it")
        _check_metadataset(path, options["follow_links"])
        return
    media = _take_media(options)
    if media is None and options["media_metadata"]:
        media = ("extension", None)
    if media is None:
        refuse_given(("exact", "headers_only"), "No media metadata is requested")
    if options["skip_dataset_yaml"]:
        refuse_given(("sample_type", "field_map", "dataset_yaml_name"), "dataset.yaml isn't written")
    if options["tar_index_only"] and media is not None:
        raise click.UsageError("--tar-index-only doesn't index media metadata: use `penstock prepare-media`.")
    if options["tar_index_only"]:
        refuse_given(("shuffle_tars", "overwrite", "dataset_yaml_name"), "--tar-index-only keeps the list of shards")
    shared = options["part"] is not None or options["finish"]
    if not options["tar_index_only"] and not wants_json() and not non_interactive and not shared:
        if _on_terminal():
            _prepare_shards(path, options, media, ask=True, confirm=True)
            return
        if as_energon() and _leaves_questions(options):
            _prepare_shards(path, options, media, ask=True, confirm=False)
            return
    if options["split_ratio"] is None:
        refuse_given(("shuffle_tars",), f"Shards are shuffled only with {_ratio_option()}")
    if options["sample_type"] is None:
        refuse_given(("dataset_yaml_name",), "dataset.yaml isn't written without --sample-type")
    _prepare_shards(path, options, media, ask=False, confirm=False)


def _leaves_questions(options: dict[str, Any]) -> bool:
    """Return whether splits or the sample type are still open, so that answers may be piped in."""
    has_splits = options["split_ratio"] is not None or bool(options["split_parts"])
    return not has_splits or (options["sample_type"] is None and not options["skip_dataset_yaml"])


def _on_terminal() -> bool:
    import sys

    return sys.stdin.isatty() and sys.stdout.isatty()


def _prepare_shards(path: str, options: dict[str, Any], media: MediaChoice | None, *, ask: bool, confirm: bool) -> None:
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
            **{name: options[name] for name in ("exclude", "tar_index_only", "shuffle_tars", *_RUN_OPTIONS)},
            overwrite=answers.overwrite,
            dataset=answers.dataset,
            sqlite=not options["no_sqlite"],
            media=None if media is None else ShardMedia(media_filter(*media), depth),
            progress=lambda done, total: advance(done, total=total),
        )
    if not wants_json():
        for warning in summary.warnings:
            note(f"warning: {warning}")
    is_done = not ask and not options["skip_dataset_yaml"] and not summary.missing
    if is_done and not folder.store.exists(meta_path(folder.path, DATASET_YAML)):
        note(
            "no dataset.yaml is written without --sample-type: Penstock reads plain samples, but Energon needs the file"
        )
    emit(summary, lambda: _prepared_text(summary))
    end_unfinished(summary.missing)


def _require_splits(path: str, options: dict[str, Any]) -> None:
    """Raise an error if splits are neither given nor written already: without a terminal, no one can be asked."""
    from penstock.formats.samples.webdataset.nvmeta import SPLIT_YAML, meta_path
    from penstock.prepare.energon.plan import plan_webdataset
    from penstock.store.place import place_of

    if options["split_ratio"] is not None and options["split_parts"]:
        raise click.UsageError(f"Give either {_ratio_option()} or --split-parts, not both.")
    if options["tar_index_only"] or options["split_ratio"] is not None or options["split_parts"]:
        return
    place = place_of(path)
    if place.is_folder() and not place.store.exists(meta_path(place.path, SPLIT_YAML)):
        plan_webdataset(path, exclude=options["exclude"], follow_links=options["follow_links"])  # there must be shards
        raise refusal(f"How should the shards be split? Give {_ratio_option()} 8,1,1 or --split-parts NAME:REGEX.")


def _dataset_of(path: str, options: dict[str, Any]) -> Any:
    """Return the contents of `dataset.yaml`, checked against the first samples."""
    from penstock.prepare.energon.run import dataset_of

    fields: Any = None
    if options["field_map"] is not None:
        try:
            fields = json.loads(options["field_map"])
        except ValueError as error:
            raise refusal(f'--field-map: invalid JSON: {error}. An example: \'{{"image": "jpg"}}\'') from None
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


def _prepared_text(summary: PrepareSummary) -> str:
    if summary.missing:
        return missing_text(summary.path, summary.missing)
    samples = f"{counted(len(summary.shard_counts), 'shard')}, {counted(summary.num_samples, 'sample')}"
    if summary.was_complete:
        return f"{summary.path}: already complete: {samples}"
    share = "" if summary.part is None else f"part {summary.part[0]} of {summary.part[1]}: "
    lines = [
        f"{summary.path}: {share}{samples}, {counted(summary.num_parts, 'part')}, {human_bytes(summary.size_bytes)}"
    ]
    if summary.num_reused:
        lines.append(f"  {counted(summary.num_reused, 'shard')} kept from an earlier run")
    for split, (shards, samples) in summary.splits.items():
        share = samples / summary.num_samples if summary.num_samples else 0
        lines.append(f"  {split}: {counted(shards, 'shard')}, {counted(samples, 'sample')}, {share:.1%}")
    if summary.part is not None:
        return "\n".join(lines)
    wrote = [f".nv-meta/{name}" for name in summary.wrote if not name.endswith(".tar.idx")]
    indexes = len(summary.wrote) - len(wrote)
    if indexes:
        wrote.append(f"{indexes:,} shard indexes")
    return "\n".join([*lines, f"  wrote {', '.join(wrote) or 'nothing'}"]) + _closing("Done")


def _prepare_jsonl(path: str, options: dict[str, Any]) -> None:
    """Write the index of a JSONL file by Energon's rules; like Energon, replace an existing one."""
    from penstock.prepare.jsonl_index import build_index

    report = build_index(
        path, flavor="energon", overwrite=True, workers=options["workers"], executor=options["executor"]
    )
    text = f"{report.index_path}: {report.num_lines:,} samples of {human_bytes(report.size_bytes)}"
    text += _closing(f"Done. Found {report.num_lines} samples.")
    emit(report, text)


def _check_metadataset(path: str, follow_links: bool) -> None:
    """Open a metadataset to check it: it needs no preparation here, as joins are made when it is opened."""
    from penstock.recipe.metadataset import open_metadataset

    opened = open_metadataset(path, follow_links=follow_links)
    text = f"{path}: valid. A metadataset needs no preparation: joins are computed when it is opened\n{opened}"
    emit({"path": path, "opens": True}, text)


# --- the assistant -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Answers:
    """The user's answers; the fields are arguments of `prepare_webdataset`."""

    split_ratio: list[float] | None = None
    split_parts: list[tuple[str, str]] | None = None
    dataset: Any = None
    overwrite: bool = False


def ask_all(path: str, options: dict[str, Any], *, confirm: bool) -> Answers:
    """Show a folder of shards and ask for what the options leave open.

    Args:
        path: the folder.
        options: those of the command; what they answer is not asked again.
        confirm: ask at the end whether to write.

    Raises:
        click.Abort: the answers end, or say no.
    """
    from penstock.prepare.energon.plan import peek_webdataset, plan_webdataset

    plan = plan_webdataset(path, exclude=options["exclude"], follow_links=options["follow_links"])
    samples = peek_webdataset(path, plan.shards, samples=_SAMPLES, follow_links=options["follow_links"])
    _show_shards(plan)
    _show_samples(samples)
    answers = Answers(overwrite=options["overwrite"])
    if plan.is_prepared and not answers.overwrite:
        if not _yes("This dataset is already prepared. Prepare it again?", default=False):
            raise click.exceptions.Exit(0) if as_energon() else click.Abort
        answers.overwrite = True
    _ask_splits(plan, options, answers)
    _ask_dataset(plan, samples, options, answers)
    if confirm and not _yes(f"Write this to {plan.path}/.nv-meta?", default=True):
        raise click.Abort
    return answers


def _show_shards(plan: EnergonPlan) -> None:
    say(f"{plan.path}: {counted(len(plan.shards), 'shard')}, {human_bytes(sum(plan.sizes))}")
    rows = [(f"  {name}", human_bytes(size)) for name, size in zip(plan.shards, plan.sizes, strict=True)]
    if len(rows) > 2 * _SHOWN_SHARDS:
        rows = [*rows[:_SHOWN_SHARDS], ("  …", ""), *rows[-_SHOWN_SHARDS:]]
    say(table(rows))
    for warning in plan.warnings:
        say(f"warning: {warning}")


def _show_samples(samples: list[PeekedSample]) -> None:
    from penstock.prepare.energon.guess import show_part

    say("\nThe first samples:")
    for one in samples:
        say(f"  {one.key}    in {one.shard}")
        width = max(map(len, one.parts))
        for part, (size_bytes, content) in one.parts.items():
            say(f"    {part.ljust(width)}  {show_part(part, size_bytes, content)}")


def _ask_splits(plan: EnergonPlan, options: dict[str, Any], answers: Answers) -> None:
    from penstock.formats.samples.webdataset.splits import by_patterns, by_ratio, parse_ratio
    from penstock.prepare.energon.guess import parse_patterns

    shuffle = options["shuffle_tars"]

    def understand(text: str) -> tuple[list[float] | None, list[tuple[str, str]] | None, Assignment]:
        if ":" in text:
            pairs = parse_patterns(text.split())
            return None, pairs, by_patterns(plan.shards, pairs)
        ratio = parse_ratio(text)
        return ratio, None, by_ratio(plan.shards, ratio, shuffle=shuffle)

    if options["split_ratio"] is not None:
        found = understand(options["split_ratio"])
    elif options["split_parts"]:
        pairs = parse_patterns(options["split_parts"])
        found = None, pairs, by_patterns(plan.shards, pairs)
    else:
        say(
            "\nSplits: the ratio of train, val and test, such as 8,1,1; or regular expressions for shard names,\n"
            "such as: train:shards/train_.* val:shards/val_.*"
        )
        found = _ask("Splits", understand)
    answers.split_ratio, answers.split_parts, assignment = found
    _show_assignment(plan, assignment)


def _show_assignment(plan: EnergonPlan, assignment: Assignment) -> None:
    for split, shards in assignment.parts.items():
        names = ", ".join(shards[:_SHOWN_SHARDS]) + (", …" if len(shards) > _SHOWN_SHARDS else "")
        say(f"  {split}: {counted(len(shards), 'shard')}{': ' if shards else ''}{names}")
    left = len(plan.shards) - len({name for shards in assignment.parts.values() for name in shards})
    if left:
        say(f"  not in any split: {counted(left, 'shard')}")


def _ask_dataset(plan: EnergonPlan, samples: list[PeekedSample], options: dict[str, Any], answers: Answers) -> None:
    from penstock.prepare.energon.guess import CRUDE, MENU, dataset_options, guess, guess_fields, sample_type_named

    if options["sample_type"] is not None or options["skip_dataset_yaml"]:
        return
    verb = "Replace the dataset.yaml" if plan.has_dataset else "Write a dataset.yaml"
    if not _yes(f"\n{verb} that describes the samples?", default=not plan.has_dataset):
        return
    answers.overwrite = answers.overwrite or plan.has_dataset
    guessed = guess(samples)
    for number, name in enumerate(MENU):
        mark = "  <- likely: " + guessed.reason if name == guessed.sample_type else ""
        say(f"  {number:2d}  {name}{mark}")
    chosen = _ask("Sample type, by number or name", sample_type_named, default=guessed.sample_type)
    parts = list(dict.fromkeys(part for one in samples for part in one.parts))
    fields: dict[str, str] | None = None
    if chosen == CRUDE:
        say("  Samples keep their parts unchanged.")
    elif _yes("Choose the source of each field? (no: write a sample_loader.py to fill in)", default=True):
        fields = guessed.field_map if chosen == guessed.sample_type else guess_fields(chosen, samples)
        fields = _ask_fields(chosen, fields, parts, samples)
    answers.dataset = dataset_options(chosen, fields, parts, name=options["dataset_yaml_name"])


def _ask_fields(chosen: str, proposed: dict[str, str], parts: list[str], samples: list[PeekedSample]) -> dict[str, str]:
    from penstock.errors import ConfigError
    from penstock.formats.samples.webdataset.sample_types import TYPES
    from penstock.prepare.energon.guess import try_field

    say(f"  Parts: {', '.join(parts)}. Inside JSON: json[caption]. The first that exists: jpg,png")
    fields: dict[str, str] = {}
    one = TYPES[chosen]
    for name in one.fields:
        is_required = name in one.required

        def understand(text: str, name: str = name, is_required: bool = is_required) -> str | None:
            if text in ("", "-"):
                if is_required:
                    raise ConfigError(f"{name} is required", expected=f"one of {', '.join(parts)}")
                return None
            for key, shown in zip((one.key for one in samples), try_field(text, samples), strict=True):
                say(f"    {key}: {shown}")
            return text

        more = "" if is_required else ", optional: - for none"
        text = _ask(f"  {name}{more}", understand, default=proposed.get(name, None if is_required else ""))
        if text is not None:
            fields[name] = text
    return fields


def _ask(what: str, understand: Callable[[str], Value], default: str | None = None) -> Value:
    """Ask until the answer is understood; says what is wrong with one that is not."""
    from penstock.errors import PenstockError

    while True:
        with _explaining_end_of_input():
            text = click.prompt(what, default=default, show_default=bool(default), type=str)
        try:
            return understand(text.strip())
        except PenstockError as error:
            say(f"  {error}")


def _yes(what: str, *, default: bool) -> bool:
    with _explaining_end_of_input():
        return click.confirm(what, default=default)


@contextlib.contextmanager
def _explaining_end_of_input() -> Generator[None]:
    """Raise `ConfigError` with the options to pass if the input ends before a question is answered."""
    from penstock.errors import ConfigError

    try:
        yield
    except click.Abort as error:
        if isinstance(error.__context__, EOFError) and not sys.stdin.isatty():
            hint = (
                f"Give --non-interactive with {_ratio_option()} or --split-parts, and with --sample-type and "
                "--field-map or --skip-dataset-yaml; or pass all answers on standard input"
            )
            raise ConfigError("the input ended before all questions were answered", hint=hint) from None
        raise


# --- media -------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("path")
@takes(f"{MEDIA} {EXECUTOR} restart part finish no_work follow_links", **BY_SIZE)
def prepare_media(path: str, **options: Any) -> None:
    """Index the metadata of media files in a directory or in a prepared WebDataset.

    Media are found by extension unless another option selects them. Files that an earlier run read are not read again.
    If a header states no reliable duration or count, the whole file is read once to count its packets.
    """
    from penstock.prepare.media.run import prepare_media

    by, patterns = _take_media(options) or ("extension", None)
    with keeping(path), progress("prepare-media", total=None, unit="files") as advance:
        summary = prepare_media(
            path,
            by=by,
            patterns=patterns,
            **options,
            progress=lambda done, total: advance(done, total=total),
            before_counting=_announce,
        )
    if not wants_json():
        from penstock.codec.upright import PIXELS

        for one in summary.problems[:_SHOWN]:
            note(f"warning: {one.name}: {one.what}")
        if len(summary.problems) > _SHOWN:
            note(f"… and {len(summary.problems) - _SHOWN:,} more; --json lists them all")
        for trait, count in summary.traits.items():
            note(f'{count:,} images have {trait}: decode="uint8" {PIXELS[trait]}')
    share = "" if summary.part is None else f"part {summary.part[0]} of {summary.part[1]}: "
    text = (
        f"{summary.path}: {share}metadata of {summary.num_rows:,} media; "
        f"{summary.num_files:,} files selected, {summary.num_read:,} read now"
    )
    text += "" if share else _closing(f"Done. Stored metadata for {summary.num_rows} files.")
    text = missing_text(summary.path, summary.missing) if summary.missing else text
    emit(summary, text)
    end_unfinished(summary.missing)


def _announce(num_files: int, size_bytes: int) -> None:
    files = "1 file" if num_files == 1 else f"{num_files:,} files"
    note(
        f"reading the whole of {files} ({human_bytes(size_bytes)}) to count packets, as headers state no reliable "
        "count; --headers-only skips this"
    )
