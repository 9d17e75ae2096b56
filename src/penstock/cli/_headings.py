"""Option groups in help: each option's heading, decided once for all commands."""

from __future__ import annotations

import re
from collections.abc import Mapping

import click

MAX_UNGROUPED = 10
"""A command with more options than this groups them under headings."""

HEADINGS: dict[str, tuple[str, ...]] = {
    name: tuple(options.split())
    for name, options in {
        "Selection": """
            -n --limit --start --index --key --text --where --match --field --min-tokens --max-tokens --indices --invert
            --columns --step --document --excluded --rank --state --key-field --tokenizer
        """,
        "Parts": "--ratio --parts --only --names --by --seed",
        "Order": "--seed --memory-mb",
        "Comparison": "--as",
        "Checks": "--depth --vocab-size",
        "Exclude list": "--reason --undo --show --also",
        "Tokenizer": "--tokenizer --eos --special-tokens --pretokenizer --engine",
        "Metadata": """
            --ratio --split-ratio --split-parts --exclude --shuffle-tars --sample-type --field-map --dataset-yaml-name
            --skip-dataset-yaml --tar-index-only --no-sqlite --non-interactive --fix-duplicates
        """,
        "Media metadata": """
            --media-metadata --media-by-extension --media-by-glob --media-by-header --exact --headers-only
        """,
        "Run": "--hosts --host --global-batch --world --step --steps --seed --lanes --state",
        "Display": """
            --show --start --index --key --depth --tokenizer --all --pictures --no-pictures --sample-folders
        """,
        "Server": "--host --port --no-open --detach",
        "Input": """
            --input-format --field --text-per --join --jq --format --split --source-split --mode --layout --eos-id
            --separator --encoding --planes --excludes --excludes-a --excludes-b --flavor --on-error
            --no-validate --mix-tokenizers --dataset-config --split-config --trust --follow-links --tmp-path
        """,
        "Columns and documents": """
            --columns --missing --tokens-column --mask-column --tokens-dtype --documents --one-document
        """,
        "Conversations": "--chat --chat-format --chat-eos --chat-date --keep-control-tokens",
        "Fill in the middle": "--fim-rate --fim-spm-rate --fim-seed --fim-tokens",
        "Output": """
            -o --output --to --index-path --overwrite --dry-run --write --write-manifest --replace-manifest --shuffle
            --file-tokens --eos --token-bytes --dtype --vocab-size --keep-map --keep-excluded --drop-planes --no-copy
            --compression --size-limit --hashes --group-rows --option
        """,
        "Tar shards": "--maxcount --maxsize --pattern --prefix-keys",
        "Workers and distributed jobs": "--workers --executor --parallel --part --finish --no-work --restart --work",
        "Profile": "--profile --workers",
        "Other": """
            --trim --clear --sweep --look-in --max-mb --allow-slow --new-world-size
            --explain --progress --no-progress --json --help
        """,
    }.items()
}
"""Heading → its options, common ones first. An option that several headings list is shown under the first of them."""


def _under(**headings: str) -> dict[str, str]:
    """Return option → heading."""
    return {name: heading.replace("_", " ") for heading, names in headings.items() for name in names.split()}


VERB_HEADINGS: dict[str, dict[str, str]] = {
    "pack": _under(Tokenizer="--tokenizer --eos", Input="--field --input-format"),
    "convert": _under(
        Output="--output --to --overwrite --dry-run --split --eos --token-bytes --vocab-size",
        Columns_and_documents="--columns",
    ),
    "shuffle": _under(Order="--seed"),
    "find": _under(Selection="--key --text --where"),
    "head": _under(Display="--tokenizer"),
    "preview": _under(Display="--tokenizer", Input="--split"),
    "view": _under(Server="--host", Run="--state", Display="--tokenizer"),
    "report": _under(Display="--limit --depth --tokenizer", Run="--step --state --seed"),
    "plan": _under(Run="--steps --global-batch --seed", Profile="--profile --workers"),
    "explain": _under(
        Selection="--step --document --excluded",
        Run="--state --seed",
        Display="--show --start --index --key --tokenizer",
    ),
    "stage": _under(Run="--hosts --host --global-batch --world --steps --seed"),
    "exclude": _under(Exclude_list="--reason --undo --show --excludes --also --dry-run"),
    "prepare": _under(Metadata="--ratio"),
    "lint": _under(Input="--split-parts"),
}
"""Command → option → its heading here, before the heading's other options. `energon` follows the same exceptions."""

_COLUMN = 26
"""Widest option that has its description in the same line."""
_APPENDED = re.compile(r"(?:^|  )\[([^\[\]]*)\]$")
_NUMBER = re.compile(r"\b(?:INTEGER|FLOAT)(?: RANGE)?\b")
_BOUNDS = re.compile(r"(-?[\d.]+)<=x<=(-?[\d.]+)")


def find_heading(option: click.Parameter, verb: str) -> str | None:
    """Return the heading of an option of a command, or None."""
    names = (*option.opts, *option.secondary_opts)
    chosen = [heading for name, heading in _exceptions(verb).items() if name in names]
    chosen += [heading for heading, known in HEADINGS.items() if {*names} & {*known}]
    return chosen[0] if chosen else None


def group_options(command: click.Command, verb: str) -> click.Command:
    """List the options of `command` under headings in its help, if it has more than `MAX_UNGROUPED`."""

    def format_options(context: click.Context, formatter: click.HelpFormatter) -> None:
        shown = [
            (one, (_NUMBER.sub("N", record[0]), _description(record[1])))
            for one in command.get_params(context)
            if isinstance(one, click.Option) and (record := one.get_help_record(context)) is not None
        ]
        column = max((len(terms) for _, (terms, _) in shown if len(terms) <= _COLUMN), default=1)
        groups: dict[str, list[tuple[int, tuple[str, str]]]] = {}
        for one, (terms, text) in shown:
            heading = (find_heading(one, verb) or "Other") if len(shown) > MAX_UNGROUPED else "Options"
            groups.setdefault(heading, []).append((_rank(one, heading, verb), (terms.ljust(column), text)))
        if isinstance(command, click.Group):
            command.format_commands(context, formatter)
        for heading in sorted(groups, key=[*HEADINGS, "Options"].index):
            with formatter.section(heading):
                formatter.write_dl([row for _, row in sorted(groups[heading], key=lambda row: row[0])], col_max=column)

    vars(command)["format_options"] = format_options
    return command


def _exceptions(verb: str) -> Mapping[str, str]:
    return VERB_HEADINGS.get(verb.removeprefix("energon "), {})


def _rank(option: click.Parameter, heading: str, verb: str) -> int:
    """Return the place of an option under its heading; without a heading each option keeps its place."""
    known = [*(name for name, chosen in _exceptions(verb).items() if chosen == heading), *HEADINGS.get(heading, ())]
    return min((known.index(name) for name in option.opts if name in known), default=len(known))


def _description(text: str) -> str:
    """Return a description with each fact that click appends in brackets of its own: `[default: 12] [0-48]`."""
    found = _APPENDED.search(text)
    if found is None:
        return text
    facts: list[str] = []
    for fact in found[1].split("; "):
        if fact.startswith("default: "):
            facts.append("default: " + re.sub(r"^\((.*)\)$", r"\1", fact.removeprefix("default: ")))
        elif bounds := _BOUNDS.fullmatch(fact):
            facts.append(f"{bounds[1]}-{bounds[2]}")
        elif not fact.startswith(("x>=0", "x>=1")):
            facts.append(fact)
    return " ".join(filter(None, (text[: found.start()], *(f"[{fact}]" for fact in facts))))
