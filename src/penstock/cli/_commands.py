"""The commands, by task: what each does in a line, and one example of each."""

from __future__ import annotations

GROUPS: dict[str, dict[str, str]] = {
    "Begin": {
        "demo": "The main job on real input that every machine has.",
        "doctor": "Versions, extras, limits and folders of this machine.",
        "completion": "A script that completes commands in your shell.",
    },
    "Prepare and store": {
        "index": "Make the raw index of a JSONL file.",
        "pack": "Tokenise and pack; killed and run again, it goes on.",
        "convert": "Convert a dataset to another format or layout.",
        "prepare": "Energon's metadata for tar shards; the index of a JSONL file.",
        "prepare-media": "What the headers of media say, as an index.",
        "status": "How far shared or unfinished work on an output is.",
    },
    "Look at": {
        "info": "What a dataset is: counts, sizes, schema.",
        "head": "Show the first samples.",
        "find": "Where samples are, by key, text or expression.",
        "diff": "Whether two datasets hold the same samples.",
        "trace": "The inputs and commands that made a dataset.",
        "preview": "Show samples in the terminal.",
        "view": "Look at datasets and runs in a browser.",
        "report": "A dataset or a run as one page, for a mail or a wiki.",
        "mount": "The parts of samples as files of a folder.",
    },
    "Check": {
        "verify": "Check a dataset; each finding says what to do.",
        "repair": "Mend known damage; only lists it without --write.",
        "lint": "Read every sample; say where one can't be, and why.",
    },
    "Reshape": {
        "merge": "Join datasets in the order given.",
        "shuffle": "Documents or lines in a random order.",
        "split": "Deal documents or lines to parts.",
        "filter": "Keep the documents or lines that fit.",
        "chunk": "One of N consecutive pieces of a dataset.",
    },
    "Take out": {
        "exclude": "Take samples out by a list beside the data.",
        "purge": "A dataset without what is excluded, and its certificate.",
    },
    "Train": {
        "plan": "What a run over a recipe will read.",
        "explain": "What a step of a run read; where a document came.",
        "stage": "Copy to this host's cache what it will read.",
        "cache": "What lies in the cache folder; trim or clear it.",
    },
    "As others call it": {
        "modalities": "The commands of Modalities: same options, same files.",
        "energon": "The commands of Energon: same options, same files.",
    },
}
"""Task → command → what it does."""

COMMANDS: dict[str, str] = {name: what for group in GROUPS.values() for name, what in group.items()}

EXAMPLES: dict[str, str] = {
    "demo": "penstock demo",
    "doctor": "penstock doctor --json",
    "completion": "penstock completion bash >> ~/.bashrc",
    "index": "penstock index raw/",
    "pack": "penstock pack raw/ -o tokens/ --tokenizer tokenizer.json --eos '<|endoftext|>'",
    "convert": "penstock convert corpus.pbin shards/ --to mds",
    "prepare": "penstock prepare tars/ --split-ratio 8,1,1",
    "prepare-media": "penstock prepare-media photos/",
    "status": "penstock status tokens/",
    "info": "penstock info corpus.pbin",
    "head": "penstock head corpus.pbin -n 2 --tokenizer tokenizer.json",
    "preview": "penstock preview tars/ -n 3",
    "view": "penstock view corpus.pbin recipe.yaml",
    "report": "penstock report corpus.pbin -o corpus.html",
    "mount": "penstock mount tars/ point/",
    "find": "penstock find corpus.jsonl --where 'id == 17'",
    "diff": "penstock diff corpus.jsonl shards/ --as set",
    "trace": "penstock trace train.pbin",
    "verify": "penstock verify corpus.pbin --depth full",
    "repair": "penstock repair corpus.pbin --write",
    "lint": "penstock lint tars/",
    "merge": "penstock merge a.pbin b.pbin -o both.pbin",
    "shuffle": "penstock shuffle corpus.jsonl -o shuffled.jsonl --seed 1",
    "split": "penstock split corpus.jsonl -o parts/ --ratio 8,1,1",
    "filter": "penstock filter corpus.jsonl -o english.jsonl --where \"lang == 'en'\"",
    "chunk": "penstock chunk corpus.pbin -o first.pbin --chunk-id 0 --num-chunks 8",
    "exclude": "penstock exclude corpus.jsonl --key 17 --reason 'asked for by its author'",
    "purge": "penstock purge corpus.jsonl -o clean.jsonl",
    "plan": "penstock plan recipe.yaml --steps 1000 --global-batch 512",
    "explain": "penstock explain recipe.yaml --step 1000 --global-batch 512",
    "stage": "penstock stage recipe.yaml --hosts 4 --host 0",
    "cache": "penstock cache --trim 50GB",
    "modalities": "penstock modalities data create_raw_index corpus.jsonl",
    "energon": "penstock energon prepare tars/",
}
"""Command → one use of it."""

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
"""Command of a group → one use of it."""

_READS = "nothing was changed"
_WRITES = "an output is whole or not there. Run the same command again"

KEPT: dict[str, str] = {
    **dict.fromkeys(("info", "head", "find", "diff", "trace", "verify", "lint", "plan", "explain", "status"), _READS),
    **dict.fromkeys(("doctor", "completion", "preview", "view", "mount"), _READS),
    "demo": "run it again with --overwrite",
    "index": "indexes that were done are whole. Run the same command again",
    "stage": "what was fetched stays in the cache. Run the same command to go on",
    "cache": "what was cleared is gone, the rest is whole",
    "repair": "each file is the old or the new one. Run the same command to go on",
    "exclude": "the list is the old or the new one. Run the same command again",
}
"""Command → what an interrupt keeps, and how to go on, where the command does not know it better."""


def kept_by(command: str) -> str:
    """What an interrupt of a command keeps."""
    return f"stopped; {KEPT.get(command, _WRITES)}"
