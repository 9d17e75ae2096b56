"""The assistant of `penstock prepare`: shows the shards, asks questions, and checks each answer against the data.

Questions have Energon's order, so answers can be piped in. Nothing is written before the last answer.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli._energon import as_energon, ratio_option
from penstock.cli._output import human_bytes, say, table

if TYPE_CHECKING:
    from penstock.formats.samples.webdataset.find import PeekedSample
    from penstock.formats.samples.webdataset.splits import Assignment
    from penstock.prepare.energon.plan import EnergonPlan

Value = TypeVar("Value")

_SAMPLES = 3
_SHOWN_SHARDS = 4


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


# --- what is there -----------------------------------------------------------------------------------------------


def _show_shards(plan: EnergonPlan) -> None:
    say(f"{plan.path}: {len(plan.shards):,} shards, {human_bytes(sum(plan.sizes))}")
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


# --- splits ------------------------------------------------------------------------------------------------------


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
        say(f"  {split}: {len(shards):,} shards{': ' if shards else ''}{names}")
    left = len(plan.shards) - len({name for shards in assignment.parts.values() for name in shards})
    if left:
        say(f"  not in any split: {left:,} shards")


# --- samples -----------------------------------------------------------------------------------------------------


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


# --- asking ------------------------------------------------------------------------------------------------------


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
                f"Give --non-interactive with {ratio_option()} or --split-parts, and with --sample-type and "
                "--field-map or --skip-dataset-yaml; or pass all answers on standard input"
            )
            raise ConfigError("the input ended before all questions were answered", hint=hint) from None
        raise
