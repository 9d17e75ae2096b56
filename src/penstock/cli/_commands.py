"""The commands by group, with a one-line summary and an example of each."""

from __future__ import annotations

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
"""Command → what an interrupt keeps and how to resume, unless the command itself knows better."""


def kept_by(command: str) -> str:
    """Say what an interrupt of a command keeps."""
    return f"stopped; {KEPT.get(command, _WRITES)}"
