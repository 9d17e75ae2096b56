"""Commands that check and repair datasets."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock._printable import printable, shortened_part
from penstock.cli._errors import with_options
from penstock.cli._options import EXECUTOR, dataset_argument, refuse_given, takes
from penstock.cli._reports import emit, missing_text
from penstock.view.draw.words import counted

if TYPE_CHECKING:
    from penstock.engine.options import RunOptions


_READ = {
    "quick": "indexes, headers and sizes; contents not read (--depth sample, full)",
    "sample": "indexes, sizes and some contents; the rest not read (--depth full)",
    "full": "every byte read",
    "decode": "every byte read, every sample decoded; sound and video not decoded",
}
"""Depth → parts of the data that were checked."""


_LISTED = 3
"""Files with the same problem that are named."""


_HEAD_BYTES = 4096


_NUMBER = re.compile(r"\d+")


def explain_code(context: click.Context, _: click.Parameter, code: str | None) -> None:
    """Print the meaning and fix of a code, and exit before PATH is required."""
    if code is not None and not context.resilient_parsing:
        from penstock.cli._findings import explain

        click.echo(explain(code))
        context.exit()


@click.command()
@dataset_argument("path")
@click.option(
    "--depth",
    type=click.Choice([*_READ]),
    default="sample",
    show_default=True,
    help="What to read: indexes and sizes (quick), also some of the data (sample), every byte (full), or every "
    "byte and each sample decoded, except audio and video (decode).",
)
@takes("format layout", layout="Layout of the data, if ambiguous.")
@click.option("--vocab-size", type=int, help="Report token IDs of at least this number as errors.")
@takes(
    "eos_id excludes split trust",
    eos_id="ID of the token that ends each document.",
    split="Check only this split. Tar shards are all checked; --depth decode decodes only the split.",
    trust="With --depth decode: run code stored with the data, such as pickles.",
)
@click.option(
    "--write-manifest", is_flag=True, help="Write a side file with counts and digests, unless there are errors."
)
@click.option(
    "--replace-manifest",
    is_flag=True,
    help="Like --write-manifest, but trust the data if it contradicts the existing side file.",
)
@click.option(
    "--work",
    metavar="DIR",
    help="Directory or URL outside the dataset where --part and --finish record their progress.",
)
@click.option(
    "--explain",
    metavar="CODE",
    is_eager=True,
    expose_value=False,
    callback=explain_code,
    help="Print what the code of a finding means and how it is fixed. No PATH needed.",
)
@takes(f"restart part finish no_work {EXECUTOR} planes follow_links")
def verify(
    path: str, depth: Any, write_manifest: bool, replace_manifest: bool, workers: int | None, executor: str | None,
    part: tuple[int, int] | None, finish: bool, no_work: bool, restart: bool, work: str | None, **options: Any,
) -> int:  # fmt: skip
    """Check a dataset.

    Prints each finding with its location and fix. Exits with 1 if there are errors.

    PATH can also be a recipe or metadataset. Then each of its datasets is checked, and datasets that are read under two
    names and references to missing media files are reported. Of a metadataset, one split is checked: --split, or train.

    To distribute the check, run it with --part and --work DIR on each machine, with DIR on shared storage, then once
    with --finish.
    """
    from penstock.check import verify
    from penstock.check.verification import verify_in_parts
    from penstock.engine.options import RunOptions

    if depth != "decode":
        refuse_given(("trust",), "Only --depth decode runs code stored with the data")
    run = RunOptions(executor, workers, part, finish, no_work, restart)
    writes = write_manifest or replace_manifest
    _require_together(run, work, writes=writes)
    if options["format"] is None and _is_recipe_file(path):
        if work is not None or writes:
            raise click.UsageError(
                "A recipe is checked by one process and has no side file: leave out --work, --write-manifest and "
                "--replace-manifest."
            )
        findings = _verify_recipe(path, {**options, "depth": depth, "workers": workers, "executor": executor})
    elif work is None:
        findings = verify(path, depth=depth, workers=workers, executor=executor, **options)
    else:
        report = verify_in_parts(path, run, work=work, depth=depth, **options)
        if report.findings is None:
            return _report_unfinished(path, work, report)
        findings = report.findings
    if replace_manifest:
        from penstock.check.repairs import is_contradiction

        findings = [one for one in findings if not is_contradiction(one, options)]
    errors = sum(one.severity == "error" for one in findings)
    wrote: dict[str, str] = {}
    if writes and not errors:
        from penstock.check.repairs import write_side_file

        wrote["side_file"] = write_side_file(path, replace=replace_manifest, **options)

    def text() -> str:
        counts = f"{counted(errors, 'error')}, {counted(len(findings) - errors, 'warning')}"
        verdict = counts if findings else f"clean at depth {depth}: {_READ[depth]}"
        lines = [*describe_findings(findings), f"{printable(shortened_part(path))}: {verdict}"]
        return "\n".join([*lines, *(f"wrote {side_path}" for side_path in wrote.values())])

    emit({"path": path, "depth": depth, "errors": errors, "findings": findings}, text, **wrote)
    return 1 if errors else 0


def _is_recipe_file(path: str) -> bool:
    """Return whether a path is that of a recipe or metadataset: a YAML or JSON file that begins like one."""
    from penstock.formats._unrecognised import looks_like_recipe

    if not path.lower().endswith((".yaml", ".yml", ".json")):
        return False
    try:
        with open(path, "rb") as file:
            return looks_like_recipe(file.read(_HEAD_BYTES))
    except OSError:
        return False


def _verify_recipe(path: str, options: dict[str, Any]) -> list[Any]:
    """Check each dataset of a recipe, then what only shows in the recipe: repeated datasets and missing files."""
    from penstock.check import verify
    from penstock.check.recipes import check_run
    from penstock.errors import FormatError
    from penstock.view.facts.opening import leaves_of, open_run

    try:
        data = open_run(path, split=options["split"], follow_links=options["follow_links"]).data
    except FormatError as error:  # a dataset that can't be opened is a finding, as in `verify` of that dataset
        return [_damaged(error, path)]
    findings: list[Any] = []
    checked: set[tuple[str, str]] = set()
    for leaf in leaves_of(data):
        recipe = leaf.recipe()
        if recipe.get("kind") != "open" or (place := (str(recipe["path"]), str(recipe.get("split")))) in checked:
            continue
        checked.add(place)
        reading: dict[str, Any] = {"split": None, "format": recipe.get("format")}
        reading |= {name: recipe[name] for name in ("split", "layout", "eos_id") if recipe.get(name) is not None}
        findings += verify(recipe["path"], **options | reading)
    depth = "full" if options["depth"] == "decode" else options["depth"]
    try:
        return findings + check_run(data, path, depth)
    except FormatError as error:  # of a dataset that is opened only now
        return findings if any(one.severity == "error" for one in findings) else [*findings, _damaged(error, path)]


def _damaged(error: Any, path: str) -> Any:
    """Return the finding for a dataset of a recipe that can't be opened."""
    from penstock.types import Finding

    where = str(error.path or path)
    found, expected = (None if one is None else str(one) for one in (error.found or error.what, error.expected))
    return Finding("recipe.damaged", "error", where, error.offset_bytes, found, expected, error.hint)


def _require_together(how: RunOptions, work: str | None, *, writes: bool) -> None:
    """Raise `ConfigError` if options of a distributed check contradict each other."""
    from penstock.errors import ConfigError

    if (how.is_distributed or how.restart) != (work is not None) or (how.restart and not how.is_distributed):
        what, hint = (
            "a distributed check needs a directory for its progress",
            "Give --work DIR with --part or --finish, or neither",
        )
        raise ConfigError(what, found="only --restart" if how.restart else None, hint=hint)
    if how.part is not None and writes:
        what, hint = "only the finalize step can write a side file", "Leave it out with --part"
        raise ConfigError(what, found="--write-manifest or --replace-manifest", hint=hint)


def _report_unfinished(path: str, work: str, report: Any) -> int:
    from penstock.errors import PrepareError

    data = {"path": path, "part": report.part, "tasks": report.tasks, "missing": report.missing}
    done = "" if report.part is None else f"part {report.part[0]} of {report.part[1]}: {report.tasks} tasks checked"
    emit(data, missing_text(work, report.missing) if report.missing else done)
    return PrepareError.exit_status if report.missing else 0


def describe_findings(findings: Sequence[Any]) -> list[str]:
    """Return all findings in lines; files of a folder with the same problem share one, which names the first of them.

    Findings with their own offset or expected value are not joined.
    """

    def problem(one: Any) -> tuple[Any, ...]:
        if one.offset_bytes is not None or one.expected is not None:
            return (id(one),)
        return one.severity, one.code, one.fix, _NUMBER.sub("", one.found or ""), one.path.rpartition("/")[0]

    lines: list[str] = []
    for _, group in itertools.groupby(findings, problem):
        alike = list(group)
        names = list(dict.fromkeys(one.path.rpartition("/")[2] for one in alike))
        if len(names) < len(alike) or len(names) <= _LISTED:
            lines += map(describe_finding, alike)
            continue
        more = ", ".join(names[1 : 1 + _LISTED]) + (", …" if len(names) > 1 + _LISTED else "")
        lines.append(f"{describe_finding(alike[0])}\n    likewise: {len(names) - 1:,} more files, {printable(more)}")
    return lines


def describe_finding(one: Any) -> str:
    """Return a finding in lines: what, where, found, expected, and what to do."""
    place = "" if one.offset_bytes is None else f" at byte {one.offset_bytes}"
    line = printable(f"{one.severity}: {one.code}: {one.path}{place}")
    fix = one.fix and with_options(one.fix, click.get_current_context().command)
    for label, value in (("found", one.found), ("expected", one.expected), ("fix", fix)):
        if value is not None:
            line += f"\n    {label}: {printable(str(value))}"
    return line


@click.command()
@click.argument("path")
@click.option("--write", is_flag=True, help="Make the changes; a backup of each changed file is kept next to it.")
@click.option(
    "--depth",
    type=click.Choice(["quick", "sample", "full"]),
    default="quick",
    show_default=True,
    help="How thoroughly to look for damage, as in `penstock verify`; full reads every byte.",
)
@takes(
    "format layout eos_id follow_links",
    layout="Layout of the data, if ambiguous.",
    eos_id="ID of the token that ends each document, to rebuild a lost index.",
)
def repair(path: str, write: bool, depth: Any, **options: Any) -> int:
    """Repair known damage.

    Lists the changes; --write makes them. Exits with 1 if errors remain.
    """
    from penstock.check import repair, verify

    actions = repair(path, write=write, depth=depth, **options)
    remaining: list[Any] = []
    if write or not any(one.possible for one in actions):  # these can't be repaired
        remaining = [one for one in verify(path, depth=depth, **options) if one.severity == "error"]

    def text() -> str:
        verb = "done" if write else "would do"
        lines = [f"{verb if one.possible else 'impossible'}: {one.path}: {one.what}" for one in actions]
        more = "" if depth == "full" else "; --depth full reads every byte"
        if remaining:
            last = f"{path}: {counted(len(remaining), 'error')} can't be repaired"
            return "\n".join([*lines, *describe_findings(remaining), last])
        if not actions:
            return f"{path}: nothing to repair at depth {depth}{more}"
        last = f"{path}: no errors left at depth {depth}{more}"
        return "\n".join([*lines, last if write else "Run again with --write to make the changes."])

    emit({"path": path, "depth": depth, "written": write, "actions": actions, "left": remaining}, text)
    return 1 if remaining else 0
