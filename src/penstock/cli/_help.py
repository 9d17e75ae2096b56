"""Tables of commands, examples and option groups, and the layout of help."""

from __future__ import annotations

import re
from collections.abc import Mapping

import click

from penstock._keywords import Opening
from penstock.cli._options import common_options, copied

GROUPS: dict[str, dict[str, str]] = {
    "Start": {
        "demo": "Run the full pipeline on the Python standard library.",
        "doctor": "Show versions, extras, limits and settings of this machine.",
    },
    "Prepare and convert": {
        "pack": "Tokenize and pack text. Re-run to resume.",
        "index": "Build the raw index of a JSONL file.",
        "convert": "Convert a dataset to another format or layout.",
        "prepare": "Write Energon metadata for tar shards, or the index of a JSONL file.",
        "prepare-media": "Index the metadata of media files.",
        "status": "Show progress of an interrupted or distributed job.",
    },
    "Inspect": {
        "info": "Show counts, sizes and schema of a dataset.",
        "head": "Show the first samples, or the samples you choose.",
        "find": "Find samples by key, text or expression.",
        "diff": "Compare the samples of two datasets.",
        "lineage": "Show the inputs and commands that made a dataset.",
        "view": "Browse datasets and runs in a web browser.",
        "report": "Write a report on a dataset or a run as one HTML page.",
        "mount": "Mount tar shards as a read-only file system.",
    },
    "Check": {
        "verify": "Check a dataset, with a fix for each finding.",
        "repair": "List known damage, and repair it with --write.",
    },
    "Transform": {
        "merge": "Join datasets in the given order.",
        "shuffle": "Shuffle documents, lines or samples.",
        "split": "Split a dataset by ratio, or extract one of N contiguous parts.",
        "filter": "Keep only documents, lines or samples that match.",
    },
    "Remove data": {
        "exclude": "Exclude samples with a list stored next to the data.",
        "purge": "Rewrite a dataset without excluded samples and issue a removal certificate.",
    },
    "Train": {
        "plan": "Show the samples, epochs, tokens and bytes that a run will read.",
        "explain": "Show which samples a step read, or which steps read a document.",
        "stage": "Pre-download what this host will read.",
        "cache": "Show, trim or clear the cache.",
    },
    "Drop-in replacements": {
        "modalities": "Run the commands of Modalities: same options, same files.",
        "energon": "Run the commands of Energon: same options, same files.",
    },
}
"""Group → command → its summary."""


MODULES: dict[str, str] = {
    command: module
    for module, commands in {
        "start": "demo doctor completion",
        "data": "pack index convert status",
        "prepare": "prepare prepare-media",
        "look": "info head find diff lineage",
        "view": "view report mount",
        "check": "verify repair",
        "reshape": "merge shuffle split filter exclude purge",
        "train": "plan explain stage cache",
        "modalities": "modalities",
        "energon": "energon",
    }.items()
    for command in commands.split()
}
"""Command → the module that defines it."""

VARIABLE = "_PENSTOCK_COMPLETE"
"""Set by the shell to get completions of a line."""

HIDDEN: dict[str, str] = {"completion": "Print a shell completion script."}
"""Commands that the root help does not list."""


RENAMED: dict[str, str] = {
    "lint": "verify PATH --depth decode",
    "preview": "head PATH --pictures",
    "chunk": "split SOURCE -o OUT --parts N --only I",
    "trace": "lineage TARGET",
}
"""Command of earlier versions → its replacement."""


ALIASES: dict[str, dict[str, str]] = {
    "prepare": {"--split-ratio": "--ratio"},
    "report": {"--examples": "--limit"},
    "exclude": {"--list": "--excludes"},
    "purge": {"--list": "--excludes"},
    "": {"--num-workers": "--workers"},
}
"""Command, or "" for all → option of earlier versions, which help does not show → its name now."""


COMMANDS: dict[str, str] = {name: what for group in (*GROUPS.values(), HIDDEN) for name, what in group.items()}


EXAMPLES: dict[str, str] = {
    "demo": "penstock demo",
    "doctor": "penstock doctor --json",
    "completion": "penstock completion bash >> ~/.bashrc",
    "index": "penstock index raw/",
    "pack": "penstock pack raw/ -o tokens/ --tokenizer tokenizer.json --eos '<|endoftext|>'",
    "convert": "penstock convert corpus.pbin shards/ --to mds",
    "prepare": "penstock prepare tars/ --ratio 8,1,1",
    "prepare-media": "penstock prepare-media photos/",
    "status": "penstock status tokens/",
    "info": "penstock info corpus.pbin",
    "head": "penstock head corpus.pbin -n 2 --tokenizer tokenizer.json",
    "view": "penstock view corpus.pbin recipe.yaml",
    "report": "penstock report corpus.pbin -o corpus.html",
    "mount": "penstock mount tars/ point/",
    "find": "penstock find corpus.jsonl --where 'id == 17'",
    "diff": "penstock diff corpus.jsonl shards/ --as set",
    "lineage": "penstock lineage train.pbin",
    "verify": "penstock verify corpus.pbin --depth full",
    "repair": "penstock repair corpus.pbin --write",
    "merge": "penstock merge a.pbin b.pbin -o both.pbin",
    "shuffle": "penstock shuffle corpus.jsonl -o shuffled.jsonl",
    "split": "penstock split corpus.jsonl -o parts/ --ratio 8,1,1",
    "filter": "penstock filter corpus.jsonl -o english.jsonl --where \"lang == 'en'\"",
    "exclude": "penstock exclude corpus.jsonl --key 17 --reason 'asked for by its author'",
    "purge": "penstock purge corpus.jsonl -o clean.jsonl",
    "plan": "penstock plan recipe.yaml --steps 1000 --global-batch 512",
    "explain": "penstock explain recipe.yaml --step 1000 --global-batch 512",
    "stage": "penstock stage recipe.yaml --hosts 4 --host 0",
    "cache": "penstock cache --trim 50GB",
    "modalities": "penstock modalities data create_raw_index corpus.jsonl",
    "energon": "penstock energon prepare tars/",
}
"""Command → an example."""


INNER_EXAMPLES: dict[str, str] = {
    "modalities data create_raw_index": "penstock modalities data create_raw_index corpus.jsonl",
    "modalities data pack_encoded_data": "penstock modalities data pack_encoded_data config.yaml",
    "modalities data merge_packed_data": "penstock modalities data merge_packed_data a.pbin b.pbin both.pbin",
    "modalities data shuffle_tokenized_data": (
        "penstock modalities data shuffle_tokenized_data --input_data_path a.pbin --output_data_path b.pbin --seed 1"
    ),
    "modalities data shuffle_jsonl_data": (
        "penstock modalities data shuffle_jsonl_data --input_data_path a.jsonl --output_data_path b.jsonl --seed 1"
    ),
    "modalities data create_shuffled_dataset_chunk": (
        "penstock modalities data create_shuffled_dataset_chunk --input_file_list_path list.txt "
        "--input_data_root_path raw/ --output_chunk_file_path chunk0.pbin --chunk_id 0 --num_chunks 8"
    ),
    "modalities data create_shuffled_jsonl_chunk": (
        "penstock modalities data create_shuffled_jsonl_chunk --input_file_list_path list.txt "
        "--input_data_root_path raw/ --output_chunk_file_path chunk0.jsonl --chunk_id 0 --num_chunks 8"
    ),
    "modalities data prepare_instruction_tuning_data": (
        "penstock modalities data prepare_instruction_tuning_data --config_file_path config.yaml"
    ),
    "energon prepare": "penstock energon prepare tars/ --split-ratio 8,1,1",
    "energon prepare-media": "penstock energon prepare-media photos/",
    "energon info": "penstock energon info tars/",
    "energon lint": "penstock energon lint tars/",
    "energon preview": "penstock energon preview tars/",
    "energon mount": "penstock energon mount tars/ point/",
    "energon checkpoint redist": "penstock energon checkpoint redist --new-world-size 4 state_0.pt state_1.pt states/",
}
"""Command of a group → an example."""


_READS = "nothing was changed"


_WRITES = "an output is either complete or missing. Re-run the same command"


_RESUMES = f"{_WRITES} to resume: partly written files may be kept, hidden, next to it"


KEPT: dict[str, str] = {
    **dict.fromkeys(("info", "head", "find", "diff", "lineage", "verify", "plan", "explain", "status"), _READS),
    **dict.fromkeys(("doctor", "completion", "view", "mount"), _READS),
    **dict.fromkeys(("convert", "filter", "merge", "shuffle", "split"), _RESUMES),
    "demo": "run it again with --overwrite",
    "index": "finished indexes are complete. Re-run the same command",
    "stage": "downloaded files stay in the cache. Re-run the same command to resume",
    "cache": "cleared entries are gone, the others are unchanged",
    "repair": "each file is either the old or the new one. Re-run the same command to resume",
    "exclude": "the exclude list is either the old or the new one. Re-run the same command",
}
"""Command → results kept by an interrupt and how to resume, unless the command reports more."""


def kept_by(command: str) -> str:
    """Describe the results that an interrupt of a command keeps."""
    return f"stopped; {KEPT.get(command, _WRITES)}"


# --- options under headings ------------------------------------------------------------------------------------------


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
    chosen += ["Input"] if option.name in Opening.__annotations__ else []
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


def add_common(command: click.Command, path: str = "") -> click.Command:
    """Add the common options to a command or to all commands of a group, unless it has options of these names."""
    if isinstance(command, click.Group):
        inner = command.get_command

        def get_command(context: click.Context, name: str) -> click.Command | None:
            found = inner(context, name)
            return (
                None if found is None else add_common(with_example(copied(found), f"{path} {name}"), f"{path} {name}")
            )

        vars(command)["get_command"] = get_command  # only of this copy
        return group_options(command, path)
    taken = {name for one in command.params for name in _flags(one)}
    command.params += [one for one in common_options(hidden=True) if not _flags(one) & taken]
    return group_options(command, path)


def with_example(command: click.Command, path: str) -> click.Command:
    """Add the example of a command to its help."""
    example = EXAMPLES.get(path) or INNER_EXAMPLES.get(path)
    if not example or command.epilog:
        return command
    command.epilog = f"Example:\n  {example}"

    def format_epilog(context: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"\n{command.epilog}\n")  # a command to copy is not wrapped

    vars(command)["format_epilog"] = format_epilog
    return command


def _flags(option: click.Parameter) -> set[str]:
    return {*option.opts, *option.secondary_opts}
