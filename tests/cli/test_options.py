# ruff: noqa: E501
"""Every option of every command changes something: an output, a message or a status.

`ROWS` and `shared_rows` hold command lines in which one option is in brackets. Each line runs twice in this process, on fresh
copies of the same small inputs: with the option and without it. An option without a line fails, so that a new one is
covered, or excused with its reason, on the day it is added.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from tests.cli.called import called
from tests.conftest import GOLDEN
from tests.internals import WORK_FILE, cli, common_options, replace

import penstock as ps

BRACKETS = re.compile(r"\[\[(.*?)\]\]")
VARYING = re.compile(r"[\d.,]+ ?(?:ns|us|µs|ms|s|min|%|[kMGT]?i?B/s|[a-z]+/s)\b")
"""Durations and rates of messages."""
UNSTEADY = re.compile(rf"{WORK_FILE}|certificate\.json$|index\.uuid$")
"""Files with times or random numbers."""
SIDE_FILE_RECORDS = ("options", "check", "binding")
"""What a side file records about the command that made it, which differs whenever an option is passed."""

PACK = "-o o.pbin --tokenizer tok --executor inline --engine tokenizers"


def read_rows(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


OPENED = {
    "info": "info {}",
    "head": "head {}",
    "energon preview": "energon preview {} -n 3",
    "energon lint": "energon lint {}",
    "find": "find {} --text d --tokenizer tok",
    "diff": "diff {} other",
    "report": "report {} -o o.html",
    "verify": "verify {}",
    "repair": "repair {}",
    "convert": "convert {} o.{}",
    "merge": "merge {} -o o.{}",
    "shuffle": "shuffle {} -o o.{} --seed 1",
    "split": "split {} -o parts --ratio 1,1 --to {}",
    "filter": "filter {} -o o.{} --indices one",
    "exclude": "exclude {} --indices one --reason asked --excludes new.list",
    "purge": "purge {} -o o.{} --excludes one.list",
}
"""Command → a line of it on a source, and a target in the format of the source."""


def opened(command: str, source: str, suffix: str = "pbin") -> str:
    """Return a line of `command` that reads `source`, and writes `suffix` if it writes."""
    line = OPENED[command].replace("{}", source, 1).replace("other", "splits/val" if suffix == "mds" else "t.pbin")
    return line.replace("o.{}", f"o --to {suffix}" if suffix in ("mds", "webdataset") else f"o.{suffix}").replace(
        "{}", suffix
    )


OPENING = {
    "--format": ("t.pbin", "[[--format mds]]", "pbin"),
    "--layout": ("raw.bin --format raw-tokens", "[[--layout uint16]]", "pbin"),
    "--eos-id": ("raw.bin --format raw-tokens --layout uint16", "[[--eos-id 0]]", "pbin"),
    "--split": ("splits", "[[--split val]]", "mds"),
    "--planes": ("planeless.pbin", "[[--planes none]]", "pbin"),
    "--excludes": ("gone.pbin", "[[--excludes none]]", "pbin"),
    "--follow-links": ("linked", "[[--follow-links]]", "mds"),
}
"""Option of opening → a source that needs it, the option and a target."""

OTHERWISE = {
    ("verify", "--excludes"),
    ("verify", "--eos-id"),
    ("verify", "--split"),
    ("repair", "--layout"),
    ("repair", "--eos-id"),
    ("find", "--split"),
}
"""Slots with lines of their own in `ROWS`."""

RESHAPING = {
    "merge": "merge a.jsonl b.jsonl -o o.jsonl",
    "shuffle": "shuffle a.jsonl -o o.jsonl --seed 1",
    "split": "split a.jsonl -o parts --ratio 1,1",
    "filter": "filter a.jsonl -o o.jsonl --where 'n > 3'",
    "convert": "convert a.jsonl o --to mds",
    "pack": f"pack a.jsonl {PACK}",
    "prepare": "prepare tars --ratio 1,1,0",
    "prepare-media": "prepare-media pics --media-by-extension",
    "verify": "verify mds --depth full --work marks",
    "index": "index a.jsonl b.jsonl",
}
"""Command that several machines can share → a line of it."""

WRITING = {
    **{name: line for name, line in RESHAPING.items() if name not in ("verify", "prepare", "prepare-media")},
    "purge": "purge gone.jsonl -o o.jsonl",
    "report": "report a.jsonl -o o.html",
    "exclude": "exclude a.jsonl --key k1 --reason asked",
}
TAKEN = {
    "merge": "merge a.jsonl b.jsonl -o b.jsonl".replace("b.jsonl -o", "-o"),
    "shuffle": "shuffle a.jsonl -o b.jsonl --seed 1",
    "split": "split a.jsonl -o parts --ratio 1,1 ; split a.jsonl -o parts --ratio 2,1",
    "filter": "filter a.jsonl -o b.jsonl --where 'n > 3'",
    "convert": "convert a.jsonl b.jsonl",
    "pack": f"pack a.jsonl {PACK}".replace("o.pbin", "t.pbin"),
    "index": "index old.jsonl",
    "purge": "purge gone.jsonl -o b.jsonl",
    "report": "report a.jsonl -o page.html",
    "prepare": "prepare set --ratio 1,1,0",
}
"""Command → a line whose output exists already."""
RECIPES = {
    "plan": "plan run.yaml --global-batch 4 --steps 2",
    "explain": "explain run.yaml --global-batch 4 --step 0",
    "stage": "stage run.yaml --hosts 2 --host 0 --global-batch 4 --steps 2",
}
JSON = {
    **{name: opened(name, "t.pbin") for name in OPENED},
    **RESHAPING,
    **RECIPES,
    "demo": "demo new --max-mb 0",
    "doctor": "doctor",
    "completion": "completion bash",
    "status": "status a.jsonl",
    "lineage": "lineage t.pbin",
    "cache": "cache",
    "exclude": "exclude gone.jsonl --show",
    "energon info": "energon info set",
    "energon checkpoint redist": "energon checkpoint redist state.pt o --new-world-size 2",
    "modalities data create_raw_index": "modalities data create_raw_index a.jsonl",
    "modalities data merge_packed_data": "modalities data merge_packed_data t.pbin t.pbin o.pbin",
    "modalities data pack_encoded_data": "modalities data pack_encoded_data pack.yaml",
    "modalities data shuffle_jsonl_data": (
        "modalities data shuffle_jsonl_data --input_data_path a.jsonl --output_data_path o.jsonl --seed 1"
    ),
    "modalities data shuffle_tokenized_data": (
        "modalities data shuffle_tokenized_data --input_data_path t.pbin --output_data_path o.pbin --seed 1"
    ),
    "modalities data create_shuffled_jsonl_chunk": (
        "modalities data create_shuffled_jsonl_chunk --input_file_list_path files --input_data_root_path . "
        "--output_chunk_file_path o.jsonl --chunk_id 0 --num_chunks 2 --global_seed 1"
    ),
    "modalities data create_shuffled_dataset_chunk": (
        "modalities data create_shuffled_dataset_chunk --input_file_list_path packed --input_data_root_path . "
        "--output_chunk_file_path o.pbin --chunk_id 0 --num_chunks 2 --global_seed 1"
    ),
    "modalities data prepare_instruction_tuning_data": (
        "modalities data prepare_instruction_tuning_data --config_file_path instruct.yaml"
    ),
}

CHUNKS = "\n".join(
    line.replace(value, f"[[{value} | {value.partition(' ')[0]} {other}]]")
    for name, line in JSON.items()
    if name.endswith("chunk")
    for value, other in (
        ("--input_file_list_path files", "packed"),
        ("--input_file_list_path packed", "files"),
        ("--input_data_root_path .", "far"),
        ("--output_chunk_file_path o.jsonl", "p.jsonl"),
        ("--output_chunk_file_path o.pbin", "p.pbin"),
    )
    if f"{value} " in line
)

ROWS = read_rows(f"""

index a.jsonl [[--flavor energon]]
index a.jsonl [[--index-path other.idx]]
index bad.jsonl [[--on-error skip]]
index bad.jsonl [[--no-validate]]
index linked_jsonl [[--follow-links]]

pack a.jsonl {PACK} [[-o o.pbin | -o q.pbin]]
pack a.jsonl -o o.pbin --executor inline [[--tokenizer tok | --tokenizer tok2]]
pack chat.jsonl -o o.pbin --tokenizer tok --executor inline --field messages [[--chat]]
pack chat.jsonl {PACK} --chat --chat-date 2024-01-01 [[--chat-eos never]]
pack chat.jsonl {PACK} --chat [[--chat-format sharegpt]]
pack chat.jsonl {PACK} --chat --chat-format messages [[--chat-date 2024-05-06]]
pack control.jsonl {PACK} --chat [[--keep-control-tokens]]
pack a.jsonl {PACK} [[--shuffle 5]]
pack a.jsonl {PACK} --fim-tokens '^,$,<|im_start|>' [[--fim-rate 1]]
pack a.jsonl {PACK} --fim-tokens '^,$,<|im_start|>' --fim-rate 1 [[--fim-spm-rate 0]]
pack a.jsonl {PACK} --fim-tokens '^,$,<|im_start|>' --fim-rate 1 [[--fim-seed 5]]
pack a.jsonl {PACK} --fim-rate 1 [[--fim-tokens '^,$,<|im_start|>']]
pack a.jsonl {PACK} [[--to megatron]]
pack a.jsonl {PACK.replace("o.pbin", "o/")} [[--file-tokens 20]]
pack a.jsonl {PACK} [[--field lang]]
pack a.jsonl {PACK} --field lang --field text [[--join '; ']]
pack a.jsonl {PACK} [[--jq .lang]]
pack a.jsonl {PACK} [[--input-format text]]
pack a.txt {PACK} --input-format text [[--text-per line]]
pack a.jsonl {PACK} [[--eos $]]
pack a.jsonl {PACK} [[--special-tokens none]]
pack a.jsonl {PACK} [[--pretokenizer gpt2]]
pack bad.jsonl {PACK} [[--on-error skip]]
pack a.jsonl -o o.pbin --tokenizer tok --executor inline [[--engine tokenizers]]
pack a.jsonl {PACK} [[--keep-map]]
pack gone.jsonl {PACK} [[--keep-excluded]]
pack gone.jsonl {PACK} [[--excludes none]]
pack linked_jsonl {PACK} [[--follow-links]]

convert a.jsonl o [[--to mds]]
convert a.jsonl [[-o o.jsonl | -o p.jsonl]]
convert t.pbin o.npy [[--eos 7]]
convert csv/a.csv o.jsonl [[--separator ;]]
convert csv/a.csv o.jsonl [[--encoding latin-1]]
convert splits o.jsonl [[--source-split val]]
convert set o --to webdataset [[--split val]]
convert rows.parquet o.pbin --eos-id 0 [[--tokens-column ids]]
convert rows.parquet o.pbin --eos-id 0 --tokens-column ids [[--mask-column mask]]
convert rows.parquet o.pbin --eos-id 0 --tokens-column raw [[--tokens-dtype int64]]
convert raw.bin o.pbin --format raw-tokens --layout uint16 [[--one-document]]
convert rows.parquet o.pbin --eos-id 0 --tokens-column ids [[--documents eos]]
convert a.jsonl o --to mds [[--columns text=str]]
convert gaps.jsonl o --to mds --columns text=str,lang=str [[--missing skip]]
convert a.jsonl o --to mds [[--compression zstd:3]]
convert a.jsonl o --to mds [[--hashes sha1]]
convert a.jsonl o --to mds [[--size-limit 128]]
convert t.pbin o [[--file-tokens 20]]
convert a.jsonl o --to mds [[--group-rows 2]]
convert t.pbin o.pbin [[--token-bytes 4]]
convert t.pbin o.idx --to megatron [[--dtype int64]]
convert t.pbin o.pbin [[--vocab-size 3]]
convert a.jsonl o --to mds [[-O size_limit=128]]
convert gone.pbin o.pbin [[--keep-excluded]]
convert p.pbin o.pbin [[--drop-planes]]

prepare tars [[--ratio 1,1,0 | --ratio 0,1,1]]
prepare tars [[--split-parts 'train:tar.*']]
prepare tars --ratio 1,1,0 [[--exclude 000001]]
prepare tars --ratio 1,1,1 [[--shuffle-tars]]
prepare captions --ratio 1,1,0 [[--sample-type CaptioningSample]]
prepare captions --ratio 1,1,0 --sample-type CaptioningSample [[--field-map '{{"image": "jpg", "caption": "txt"}}']]
prepare tars --ratio 1,1,0 [[--dataset-yaml-name other.yaml]]
prepare tars --ratio 1,1,0 --sample-type TextSample --field-map '{{"text": "txt"}}' [[--skip-dataset-yaml]]
prepare set --non-interactive [[--tar-index-only]]
prepare tars --ratio 1,1,0 [[--no-sqlite]]
prepare media --ratio 1,1,0 [[--media-metadata]]
prepare media --ratio 1,1,0 [[--media-by-extension]]
prepare media --ratio 1,1,0 [[--media-by-glob *.jpg]]
prepare media --ratio 1,1,0 [[--media-by-header]]
prepare media --ratio 1,1,0 --media-metadata [[--exact]]
prepare-media pics --media-by-glob *.jpg [[--media-by-extension]]
prepare-media pics [[--media-by-glob *.jpg]]
prepare-media pics [[--media-by-header]]
prepare-media pics --media-by-extension [[--exact]]
energon prepare-media pics --media-by-glob *.jpg [[--media-metadata-by-header]]
prepare linked_tars --ratio 1,1,0 [[--follow-links]]
prepare-media linked_tars --media-by-extension [[--follow-links]]

filter a.jsonl -o o.jsonl --where 'n > 3' --part 0/2 ; status o.jsonl [[--sweep]]

head t.pbin [[-n 2]]
head a.jsonl [[--flavor energon]]
head a.jsonl [[--columns text]]
head pkl -n 1 --columns c_pkl [[--trust]]
head a.jsonl [[--start 3]]
head a.jsonl [[--index 3]]
head a.jsonl [[--key k3]]
head t.pbin [[--tokenizer tok]]
head set [[--all]]
head images -n 1 [[--pictures blocks]]
head images -n 1 --pictures blocks [[--no-pictures]]
energon preview set [[--split val]]
energon preview a.jsonl [[-n 2]]
energon preview a.jsonl [[--flavor energon]]
energon preview a.jsonl [[--start 3]]
energon preview a.jsonl [[--index 3]]
energon preview a.jsonl [[--key k3]]
energon preview t.pbin [[--tokenizer tok]]
energon preview set [[--all]]
energon preview pkl -n 1 [[--trust]]
energon preview images -n 1 [[--pictures blocks]]
energon preview images -n 1 --pictures blocks [[--no-pictures]]

find a.jsonl [[--key k3]]
find splits --where 'n > 1' [[--split val]]
find a.jsonl [[--text 'document 3']]
find a.jsonl [[--where 'n > 3']]
find a.jsonl --where 'n > 3' [[--limit 2]]
find a.jsonl --key 'en' [[--key-field lang]]
find t.pbin --text 'document' [[--tokenizer tok]]
diff a.jsonl back.jsonl [[--as set]]
diff gone.jsonl a.jsonl [[--excludes-a none]]
diff a.jsonl gone.jsonl [[--excludes-b none]]
lineage far/o.jsonl [[--look-in elsewhere]]

report a.jsonl [[-o o.html | -o p.html]]
report a.jsonl -o o.html [[--limit 2]]
report a.jsonl -o o.html [[--depth full]]
report run.yaml -o o.html --global-batch 4 --steps 2 [[--step 1]]
report run.yaml -o o.html --global-batch 4 [[--steps 2]]
report run.yaml -o o.html [[--global-batch 4]]
report run.yaml -o o.html --steps 2 [[--state state.json]]
report run.yaml -o o.html --global-batch 4 --steps 2 [[--world 2]]
report blend.yaml -o o.html --global-batch 4 --steps 2 [[--seed 3]]
report blend.yaml -o o.html --global-batch 4 --steps 2 [[--mode val]]
report t.pbin -o o.html [[--tokenizer tok]]
report pkl -o o.html [[--trust]]

verify broken [[--depth full]]
verify gone.pbin [[--excludes nosuch]]
verify raw.bin --format raw-tokens --layout uint16 --depth full [[--eos-id 99]]
repair t.pbin [[--layout nosuch]]
repair lost.pbin [[--eos-id 0]]
verify t.pbin --depth full [[--vocab-size 3]]
verify a.jsonl [[--write-manifest]]
verify changed.pbin --depth full [[--replace-manifest]]
verify mds --depth full --part 0/2 [[--work marks]]
repair lost [[--write]]
repair broken [[--depth full]]
verify t.pbin [[--split val]]
verify pkl --depth decode [[--trust]]
verify t.pbin [[--explain pbin.truncated]]
energon lint bad_set [[--split-parts val]]
energon lint set [[--dataset-config other.yaml]]
energon lint set [[--split-config other.yaml]]
energon lint pkl [[--trust]]

merge a.jsonl b.jsonl [[-o o.jsonl | -o p.jsonl]]
merge t.pbin x.pbin -o o.pbin [[--mix-tokenizers]]
merge many/one many/two -o many --to mds [[--no-copy]]
merge t.pbin t.pbin -o o.pbin [[--token-bytes 4]]
shuffle a.jsonl --seed 1 [[-o o.jsonl | -o p.jsonl]]
shuffle a.jsonl -o o.jsonl [[--seed 1 | --seed 2]]
shuffle t.pbin -o o.pbin --seed 1 [[--token-bytes 4]]
split a.jsonl --ratio 1,1 [[-o o | -o p]]
split a.jsonl -o parts [[--ratio 1,1 | --ratio 1,2]]
split a.jsonl -o parts --ratio 1,1 [[--names x,y]]
split a.jsonl -o parts --ratio 1,1 [[--seed 3]]
split a.jsonl -o parts --ratio 1,1 [[--by content]]
merge tars -o o [[--maxcount 2]]
merge tars -o o [[--maxsize 1024]]
merge tars -o o [[--pattern s_%06d.tar]]
merge tars -o o [[--prefix-keys]]
convert set o --to webdataset [[--prefix-keys]]
shuffle tars -o o --seed 1 [[--prefix-keys]]
split tars -o o --ratio 1,1 [[--prefix-keys]]
shuffle tars -o o --seed 1 [[--maxcount 2]]
shuffle tars -o o --seed 1 [[--maxsize 1024]]
shuffle tars -o o --seed 1 [[--pattern s_%06d.tar]]
split tars -o o --ratio 1,1 [[--maxcount 2]]
split tars -o o --ratio 1,1 [[--maxsize 1024]]
split tars -o o --ratio 1,1 [[--pattern s_%06d.tar]]
filter a.jsonl --where 'n > 3' [[-o o.jsonl | -o p.jsonl]]
filter t.pbin -o o.pbin [[--min-tokens 9]]
filter t.pbin -o o.pbin [[--max-tokens 9]]
filter a.jsonl -o o.jsonl [[--match 'document 3']]
filter a.jsonl -o o.jsonl --match en [[--field lang]]
filter a.jsonl -o o.jsonl [[--where 'n > 3']]
filter a.jsonl -o o.jsonl [[--indices one]]
filter a.jsonl -o o.jsonl --where 'n > 3' [[--invert]]
filter t.pbin -o o.pbin --min-tokens 2 [[--token-bytes 4]]
split a.jsonl --parts 2 --only 0 [[-o o.jsonl | -o p.jsonl]]
split a.jsonl -o o.jsonl --parts 2 [[--only 0 | --only 1]]
split a.jsonl -o o.jsonl --only 0 [[--parts 2 | --parts 3]]
split t.pbin -o o.pbin --parts 2 --only 0 [[--token-bytes 4]]
split a.jsonl -o o.jsonl --parts 2 --only 0 [[--to mds]]
split a.jsonl -o o.jsonl --parts 2 --only 0 [[--keep-map]]
split gone.pbin -o o.pbin --parts 2 --only 0 [[--keep-excluded]]
split p.pbin -o o.pbin --parts 2 --only 0 [[--drop-planes]]
split planeless.pbin -o o.pbin --parts 2 --only 0 [[--planes none]]
split gone.pbin -o o.pbin --parts 2 --only 0 [[--excludes none]]
split splits -o o --parts 2 --only 0 [[--split val]]
split a.jsonl -o o.jsonl --parts 2 --only 0 [[--dry-run]]
split a.jsonl -o b.jsonl --parts 2 --only 0 [[--overwrite]]

exclude a.jsonl --reason asked [[--key k3]]
exclude a.jsonl --reason asked [[--indices one]]
exclude a.jsonl --reason asked [[--where 'n > 3']]
exclude a.jsonl --key k3 [[--reason asked]]
exclude a.jsonl --key k3 --reason asked [[--excludes new.list]]
exclude gone.jsonl [[--undo]]
exclude gone.jsonl [[--show]]
exclude a.jsonl --key k3 --reason asked [[--also made.jsonl]]
exclude a.jsonl --key de --reason asked [[--key-field lang]]
purge gone.jsonl [[-o o.jsonl | -o p.jsonl]]
purge gone.jsonl -o o.jsonl [[--excludes other.list]]

plan blend.yaml --global-batch 4 --steps 2 [[--split val]]
plan blend.yaml --global-batch 4 --steps 2 [[--mode val]]
plan run.yaml --steps 2 [[--global-batch 4]]
plan run.yaml --global-batch 4 --steps 2 [[--seed 3]]
plan run.yaml --global-batch 4 --steps 2 [[--world 3]]
plan run.yaml --global-batch 4 --steps 2 [[--lanes 2]]
plan function.yaml --global-batch 4 --steps 2 [[--trust]]
plan run.yaml --global-batch 4 [[--steps 2]]
plan run.yaml --global-batch 4 --steps 2 [[--profile 2]]
plan run.yaml --global-batch 4 --steps 2 [[--workers 1]]
explain blend.yaml --global-batch 4 --step 0 [[--split val]]
explain blend.yaml --global-batch 4 --step 0 [[--mode val]]
explain run.yaml --step 0 [[--global-batch 4]]
explain blend.yaml --global-batch 4 --step 0 [[--seed 3]]
explain run.yaml --global-batch 4 --step 0 --rank 0 [[--world 2]]
explain run.yaml --global-batch 4 --step 0 [[--lanes 2]]
explain function.yaml --global-batch 4 --step 0 [[--trust]]
explain run.yaml --global-batch 4 [[--step 1]]
explain run.yaml --global-batch 4 --step 0 --world 2 [[--rank 1]]
explain run.yaml --step 0 [[--state state.json]]
explain run.yaml --global-batch 4 --step 0 [[--document 3]]
explain run.yaml --state state.json [[--excluded]]
explain run.yaml --global-batch 4 --step 0 [[--limit 2]]
explain run.yaml --global-batch 4 --step 0 [[--show]]
explain samples.yaml --global-batch 4 --step 0 --show [[--start 1]]
explain run.yaml --global-batch 4 --step 0 --show [[--index 1]]
explain samples.yaml --global-batch 4 --step 0 --show [[--key k3]]
explain run.yaml --global-batch 4 --step 0 --show [[--tokenizer tok]]
explain blend.yaml --global-batch 4 --step 0 --show [[--all]]
explain images.yaml --global-batch 1 --step 0 --show [[--pictures blocks]]
explain images.yaml --global-batch 1 --step 0 --show --pictures blocks [[--no-pictures]]
stage blend.yaml --hosts 2 --host 0 --global-batch 4 --steps 2 [[--split nosuch]]
stage run.yaml --hosts 2 --host 0 --global-batch 4 --steps 2 [[--mode val]]
stage run.yaml --hosts 2 --host 0 --steps 2 [[--global-batch 4]]
stage run.yaml --hosts 2 --host 0 --global-batch 4 --steps 2 [[--seed 3]]
stage run.yaml --hosts 2 --host 0 --global-batch 4 --steps 2 [[--world 3]]
stage run.yaml --hosts 2 --host 0 --global-batch 4 --steps 2 [[--lanes 2]]
stage function.yaml --hosts 2 --host 0 --global-batch 4 --steps 2 [[--trust]]
stage run.yaml --host 1 --global-batch 4 --steps 2 [[--hosts 2 | --hosts 1]]
stage run.yaml --hosts 2 --global-batch 4 --steps 2 [[--host 0 | --host 2]]
cache [[--trim 50GB]]
cache [[--clear]]
{chr(10).join(f"{line.replace('.yaml', '_linked.yaml', 1)} [[--follow-links]]" for line in RECIPES.values())}

modalities data create_raw_index a.jsonl [[--index_path other.idx]]
{JSON["modalities data create_shuffled_jsonl_chunk"].replace("--chunk_id 0", "")} [[--chunk_id 0 | --chunk_id 1]]
{JSON["modalities data create_shuffled_jsonl_chunk"].replace("--num_chunks 2", "")} [[--num_chunks 2 | --num_chunks 3]]
{JSON["modalities data create_shuffled_jsonl_chunk"].replace("--global_seed 1", "[[--global_seed 1 | --global_seed 3]]")}
{JSON["modalities data create_shuffled_dataset_chunk"].replace("--chunk_id 0", "")} [[--chunk_id 0 | --chunk_id 1]]
{JSON["modalities data create_shuffled_dataset_chunk"].replace("--num_chunks 2", "")} [[--num_chunks 2 | --num_chunks 3]]
{JSON["modalities data create_shuffled_dataset_chunk"].replace("--global_seed 1", "[[--global_seed 1 | --global_seed 3]]")}
{JSON["modalities data shuffle_jsonl_data"].replace("--seed 1", "[[--seed 1 | --seed 3]]")}
{JSON["modalities data shuffle_tokenized_data"].replace("--seed 1", "[[--seed 1 | --seed 3]]")}
{JSON["modalities data shuffle_jsonl_data"].replace("--input_data_path a.jsonl", "[[--input_data_path a.jsonl | --input_data_path b.jsonl]]")}
{JSON["modalities data shuffle_jsonl_data"].replace("--output_data_path o.jsonl", "[[--output_data_path o.jsonl | --output_data_path p.jsonl]]")}
{JSON["modalities data shuffle_tokenized_data"].replace("--input_data_path t.pbin", "[[--input_data_path t.pbin | --input_data_path x.pbin]]")}
{JSON["modalities data shuffle_tokenized_data"].replace("--output_data_path o.pbin", "[[--output_data_path o.pbin | --output_data_path p.pbin]]")}
modalities data prepare_instruction_tuning_data [[--config_file_path instruct.yaml | --config_file_path pack.yaml]]
{CHUNKS}
report a.jsonl -o o.html [[--flavor energon]]
energon info set [[--split-config other.yaml]]
energon info set [[--dataset-config other.yaml]]
energon info linked_set [[--follow-links]]
energon checkpoint redist state.pt o [[--new-world-size 2 | --new-world-size 1]]
""")

VIEW = "view t.pbin"
ROWS += [f"view a.jsonl {option}" for option in (
    "[[--format mds]]", "[[--split val]]", "[[--layout uint16]]", "[[--eos-id 1]]", "[[--planes none]]",
    "[[--flavor energon]]", "[[--excludes none]]", "[[--global-batch 4]]", "[[--state state.json]]",
    "[[--host 127.0.0.2]]", "[[--port 12345]]", "[[--no-open]]", "[[--tokenizer tok]]", "[[--trust]]",
    "[[--follow-links]]", "[[--json]]",
)] + [f"mount set point {option}" for option in (
    "[[--sample-folders]]", "[[--detach]]", "[[--excludes none]]", "[[--follow-links]]", "[[--json]]",
)]  # fmt: skip

EXEMPT = {
    ("demo", "--overwrite"): "a demo takes 20 seconds: tests/cli/test_functions.py",
    ("demo", "--max-mb"): "a demo takes 20 seconds",
    ("prepare", "--non-interactive"): "questions are only for terminals: tests/cli/test_prepare_assistant.py",
    ("energon prepare", "--progress"): "display",
    ("energon prepare-media", "--progress"): "display",
    ("energon prepare", "--fix-duplicates"): "accepted for scripts of Energon, without effect, as the help says",
    ("energon preview", "--dataset-config"): "accepted for scripts of Energon, without effect, as the help says",
    ("energon mount", "-w"): "accepted for scripts of Energon, without effect, as the help says",
    ("energon lint", "--parallel"): "accepted for scripts of Energon, without effect, as the help says",
    ("modalities data shuffle_tokenized_data", "--batch_size"): "has no influence on the result, as the help says",
    ("shuffle", "--memory-mb"): "speed",
}
"""Command and option → why no output or error can differ. It counts for the same command below `energon` too."""

NOT_COVERED = {
    ("prepare", "--headers-only"),
    ("energon prepare", "--tmp-path"),
    ("prepare-media", "--headers-only"),
    ("energon prepare-media", "--tmp-path"),
    ("find", "--trust"),
    ("diff", "--trust"),
    ("exclude", "--trust"),
    ("stage", "--steps"),
}
"""Commands and options without a line yet. Entries are only ever removed."""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that runs something, with its full name."""

    def walk(group: click.Group, name: str, context: click.Context) -> Iterator[tuple[str, click.Command]]:
        for inner in group.list_commands(context):
            command, path = group.get_command(context, inner), f"{name} {inner}".strip()
            assert command is not None
            if isinstance(command, click.Group):
                yield from walk(command, path, click.Context(command, info_name=inner, parent=context))
            else:
                yield path, command

    yield from walk(cli, "", click.Context(cli))


COMMANDS = dict(commands())
COMMON = {name for option in common_options(hidden=False) for name in option.opts}


def options_of(command: str) -> dict[str, click.Option]:
    """Name, as in the help, of each option of a command → the option, but those that every command has."""
    options = [one for one in COMMANDS[command].params if isinstance(one, click.Option)]
    return {one.opts[0]: one for one in options if not (one.hidden and set(one.opts) <= COMMON)}


SLOTS = [(command, option) for command in COMMANDS for option in options_of(command)]


def command_of(line: str) -> str:
    """Return the longest command that the last part of a line begins with."""
    last = line.split(" ; ")[-1]
    return max((name for name in COMMANDS if f"{last} ".startswith(f"{name} ")), key=len)


def option_of(line: str) -> str:
    """Return the option in the brackets of a line, by its name in the help."""
    written = re.split(r"[ =]", BRACKETS.findall(line)[0].split(" | ")[-1])[0]
    return next(
        name for name, one in options_of(command_of(line)).items() if written in (*one.opts, *one.secondary_opts)
    )


def has(command: str, option: str) -> bool:
    return any(option in (*one.opts, *one.secondary_opts) for one in options_of(command).values())


def shared_rows() -> Iterator[str]:
    """Lines of the options that many commands have."""
    for option, (source, brackets, suffix) in OPENING.items():
        lines = {name: opened(name, source, suffix) for name in OPENED if has(name, option)}
        yield from (f"{line} {brackets}" for name, line in lines.items() if (name, option) not in OTHERWISE)
    yield from (f"{line} [[--json]]" for line in JSON.values())
    for line in RESHAPING.values():
        yield f"{line} [[--part 0/2]]"
        yield f"{line} --part 1/2 ; {line} --no-work [[--finish]]"
        yield f"{line} --part 1/2 ; {line} --finish [[--no-work]]"
        if has(command_of(line), "--restart"):
            yield f"{line} --part 0/2 ; {line} --part 1/3 [[--restart]]"
        line = f"{line} --part 0/2" if line.startswith("verify") else line
        if "--executor inline" not in line:
            yield f"{line} [[--executor nosuch]]"
            yield f"{line} --executor inline [[--workers 2]]"
        else:
            yield line.replace("--executor inline", "[[--executor nosuch]]")
            yield f"{line} [[--workers 2]]"
    for line in (opened("find", "t.pbin"), "diff a.jsonl back.jsonl", opened("purge", "t.pbin")):
        yield f"{line} [[--executor nosuch]]"
        yield f"{line} --executor inline [[--workers 2]]"
    for line in WRITING.values():
        yield f"{line} [[--dry-run]]"
    for line in TAKEN.values():
        yield f"{line} [[--overwrite]]"
    for name in ("merge", "shuffle", "split", "filter", "purge"):
        line = WRITING[name].replace("-o o.jsonl", "-o o")
        yield f"{line} [[--to mds]]"
    for name in ("merge", "shuffle", "split", "filter"):
        yield f"{WRITING[name]} [[--keep-map]]"
        yield f"{opened(name, 'gone.pbin')} [[--keep-excluded]]"
        yield f"{opened(name, 'p.pbin')} [[--drop-planes]]"
    for name, line in JSON.items():
        if has(name, "--file_existence_policy"):
            yield f"{line} ; {line} [[--file_existence_policy override]]"


def for_energon(lines: list[str]) -> Iterator[str]:
    """Lines again for Energon's names of our commands, without the questions that `prepare` asks there."""
    for line in lines:
        name, option = f"energon {command_of(line)}", option_of(line)
        if name == "energon prepare":
            option, line = (one.replace("--ratio", "--split-ratio") for one in (option, line))
        if name in COMMANDS and not line.startswith("energon") and option in options_of(name):
            asks = " --non-interactive" if name == "energon prepare" else ""
            yield " ; ".join(f"energon {part}".replace(name, name + asks, 1) for part in line.split(" ; "))


ALL_ROWS = list(dict.fromkeys([*ROWS, *shared_rows()]))
ALL_ROWS += for_energon(ALL_ROWS)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_inputs()
    return folder


def write_rows(path: str, rows: list[dict[str, Any]]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_inputs() -> None:
    rows = [
        {"__key__": f"k{n}", "n": n, "text": f"document {n} " * (1 + n % 4), "lang": ["en", "de", "fr"][n % 3]}
        for n in range(9)
    ]
    write_rows("a.jsonl", rows)
    write_rows("b.jsonl", [{"__key__": f"b{n}", "n": n, "text": "other", "lang": "en"} for n in range(3)])
    write_rows("back.jsonl", rows[::-1])
    write_rows("gaps.jsonl", [{"text": "a", "lang": "en"}, {"text": "b"}])
    Path("bad.jsonl").write_text(Path("b.jsonl").read_text() + "{\n")
    Path("a.txt").write_text("one\ntwo\n")
    Path("one").write_text("1\n")
    for name in ("gone.jsonl", "other.jsonl"):
        write_rows(name, rows)
    ps.exclude("gone.jsonl", key=["k2", "k5"], reason="asked")
    ps.exclude("gone.jsonl", key=["k3"], reason="asked", list="other.list")
    write_rows("made.jsonl", [])
    write_rows("old.jsonl", rows)
    ps.index("old.jsonl")
    write_rows("old.jsonl", rows[::-1] * 2)
    ps.filter("a.jsonl", "made.jsonl", where="n > 1", overwrite=True)
    # Tokens.
    documents = [[*range(1, 3 + n), 0] for n in range(12)]
    for name in ("t.pbin", "gone.pbin", "changed.pbin"):
        with ps.create(name, format="pbin", token_bytes=2, eos_id=0) as writer:
            for one in documents:
                writer.write({"tokens": one})
    with ps.create("x.pbin", format="pbin", token_bytes=2, eos_id=1) as writer:
        writer.write({"tokens": [5, 1]})
    with ps.create("p.pbin", format="pbin", token_bytes=2, eos_id=0, planes={"loss_mask": "bool"}) as writer:
        for one in documents:
            writer.write({"tokens": one, "loss_mask": [n % 2 for n in one]})
    for suffix in ("", ".penstock"):
        shutil.copy(f"p.pbin{suffix}", f"planeless.pbin{suffix}")
    data = Path("t.pbin").read_bytes()
    Path("lost.pbin").write_bytes(data[: 8 + 4 + int.from_bytes(data[:8], "little")])
    ps.exclude("gone.pbin", indices=[1], reason="asked")
    for name in ("t.pbin", "p.pbin", "gone.pbin"):
        ps.exclude(name, indices=[2], reason="asked", list="one.list")
    data = bytearray(Path("changed.pbin").read_bytes())
    data[8 + 4] ^= 1
    Path("changed.pbin").write_bytes(data)
    np.array([token for one in documents for token in one], np.uint16).tofile("raw.bin")
    ids = pa.array(documents, pa.list_(pa.int64()))
    raw = pa.array([np.array(one, np.int64).tobytes() for one in documents])
    mask = pa.array([[n % 2 for n in one] for one in documents], pa.list_(pa.int64()))
    pq.write_table(pa.table({"ids": ids, "raw": raw, "mask": mask, "text": pa.array(["x"] * 12)}), "rows.parquet")
    # Shards.
    for name in ("mds", "splits/train", "splits/val", "many/one", "many/two", "broken", "lost"):
        with ps.create(name, format="mds", columns={"text": "str", "n": "int"}) as writer:
            for row in rows[: 4 if "val" in name else 9]:
                writer.write({"text": row["text"], "n": row["n"]})
    shard = next(Path("broken").glob("*.mds"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
    Path("lost/index.json").unlink()
    shutil.copytree(GOLDEN / "streaming" / "mds_all", "pkl")
    image = (GOLDEN / "energon" / "filesystem" / "a.jpg").read_bytes()
    Path("pics").mkdir()
    Path("pics/a.jpg").write_bytes(image)
    Path("pics/b.bin").write_bytes(image)
    with ps.create("images", format="mds", columns={"image": "bytes", "n": "int"}) as writer:
        for n in range(2):
            writer.write({"image": image, "n": n})
    for name in ("tars", "media", "captions"):
        for shard in range(3):
            Path(name).mkdir(exist_ok=True)
            with tarfile.open(f"{name}/tar{shard:06}.tar", "w") as tar:
                for n in range(4):
                    parts = {"txt": b"text %d" % n} if name == "tars" else {"txt": b"text", "jpg": image[:-40]}
                    for part, value in parts.items():
                        member = tarfile.TarInfo(f"s{shard}_{n}.{part}")
                        member.size = len(value)
                        tar.addfile(member, __import__("io").BytesIO(value))
    for name in ("set", "bad_set", "linked_set"):
        shutil.copytree("tars", name)
        called(
            "prepare", name, "--split-ratio", "1,1,1", "--sample-type", "TextSample", "--field-map", '{"text": "txt"}'
        )
        meta = Path(name) / ".nv-meta"
        config = (meta / "dataset.yaml").read_text()
        (meta / "other.yaml").write_text(config.replace("text: txt", "text: nosuch"))
    # Links that lead out of the folder.
    Path("outside").mkdir()
    shutil.copytree("mds", "linked")
    for file in [*Path("linked").glob("*.mds"), Path("linked/index.json")]:
        shutil.move(file, Path("outside") / file.name)
        file.symlink_to(Path("../outside") / file.name)
    for name, pattern in (("linked_tars", "tars/*.tar"), ("linked_jsonl", "b.jsonl")):
        Path(name).mkdir()
        for file in Path().glob(pattern):
            (Path(name) / file.name).symlink_to(Path("..") / file)
    shutil.rmtree("linked_set/.nv-meta")
    shutil.copytree("set/.nv-meta", "linked_set/.nv-meta")
    Path("linked_set/.nv-meta/split.yaml").unlink()
    Path("linked_set/.nv-meta/split.yaml").symlink_to("../../set/.nv-meta/split.yaml")
    for file in list(Path("linked_set").glob("*.tar")):
        file.unlink()
        file.symlink_to(Path("../set") / file.name)
    # Tables, chats, tokenizers.
    write_rows("chat.jsonl", [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}])
    write_rows("control.jsonl", [{"messages": [{"role": "user", "content": "a $ b"}]}])
    Path("csv").mkdir()
    Path("csv/a.csv").write_bytes("text,n\né;a,1\n".encode())
    golden = json.loads((GOLDEN / "modalities/tokenizers/bpe2/tokenizer.json").read_text())
    for name in ("tok", "tok2"):
        Path(name).mkdir()
        golden["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "^", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"^": {"id": "^", "ids": [3], "tokens": ["^"]}},
        } if name == "tok" else None  # fmt: skip
        Path(name, "tokenizer.json").write_text(json.dumps(golden))
        template = "{{ strftime_now('%Y') }}{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}"
        config = {"eos_token": "<|eod|>", "chat_template": template}
        Path(name, "tokenizer_config.json").write_text(json.dumps(config))
    # Recipes.
    window = "window: {chunk: {length: 8}}"
    Path("run.yaml").write_text(f"penstock: 1\nstream: {{path: t.pbin, {window}, shuffle: {{seed: 5, lanes: 1}}}}\n")
    Path("bare.yaml").write_text(f"penstock: 1\nstream: {{path: t.pbin, {window}}}\n")
    Path("function.yaml").write_text(f"penstock: 1\nstream: {{path: t.pbin, {window}, map: 'nowhere:fn'}}\n")
    Path("samples.yaml").write_text("penstock: 1\nstream: {path: a.jsonl}\n")
    Path("images.yaml").write_text("penstock: 1\nstream: {path: images}\n")
    for name in ("run", "bare"):
        Path(f"{name}_linked.yaml").write_text("penstock: 1\nstream: {path: linked, shuffle: {seed: 5}}\n")
    kind = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    train = {"blend": [{"path": "set", "weight": 1}, {"path": "bad_set", "weight": 3}]}
    Path("blend.yaml").write_text(yaml.safe_dump({**kind, "splits": {"train": train, "val": {"path": "set"}}}))
    stream: Any = ps.open_recipe("run.yaml")
    loader = ps.Loader(stream, global_batch=4, workers=0)
    next(iter(loader))
    Path("state.json").write_text(json.dumps(loader.state_dict()))
    # The rest.
    ps.report("b.jsonl", "page.html")
    Path("files").write_text("a.jsonl\nb.jsonl\n")
    Path("packed").write_text("t.pbin\nt.pbin\n")
    config = {"component_key": "tokenizer", "variant_key": "pretrained_hf_tokenizer"}
    config["config"] = {"pretrained_model_name_or_path": "tok", "padding": False, "truncation": False}  # type: ignore
    settings = {"src_path": "a.jsonl", "dst_path": "o.pbin", "index_path": "packed.idx", "jq_pattern": ".text"}
    settings |= {"num_cpus": 1, "eod_token": "<|eod|>", "processing_batch_size": 7}  # type: ignore
    settings |= {"raw_samples_queue_size": 300, "processed_samples_queue_size": 300}  # type: ignore
    Path("pack.yaml").write_text(yaml.safe_dump({"settings": settings, "tokenizer": config}))
    called("index", "a.jsonl", "--index-path", "packed.idx")
    os.makedirs("far")
    write_rows("moved.jsonl", rows)
    ps.filter("moved.jsonl", "far/o.jsonl", where="n > 1")
    os.makedirs("elsewhere")
    shutil.move("moved.jsonl", "elsewhere/moved.jsonl")


Outcome = dict[str, Any]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of every line: all paths in outcomes are the same."""
    return tmp_path_factory.mktemp("lines") / "home"


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """Outcomes of lines without their options, which many tests share."""
    return {}


@pytest.fixture
def outcome(inputs: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what a line leaves: its status, both streams, and all files."""
    replace(monkeypatch, "view_server", show)
    replace(monkeypatch, "mount_server", show)
    monkeypatch.setattr("webbrowser.open", click.echo)
    monkeypatch.setenv("DISPLAY", ":0")
    return functools.partial(run, inputs, home, monkeypatch)


def show(*arguments: Any, ready: Any, **options: Any) -> None:
    """Stand for a server, which would not return."""
    click.echo(f"{arguments} {options}")
    if ready.__code__.co_argcount:
        ready("url")
    else:
        ready()


def run(inputs: Path, home: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> Outcome:
    monkeypatch.chdir(home.parent)
    restore(inputs, home)
    monkeypatch.chdir(home)
    monkeypatch.setenv("PENSTOCK_CACHE", str(home.parent / "cache"))
    shutil.rmtree(home.parent / "cache", ignore_errors=True)
    for part in line.split(" ; "):
        done = called(*shlex.split(part))
    found: Outcome = {"status": done.returncode, "out": steady(done.stdout), "err": steady(done.stderr)}
    for path, state in sorted(states(home).items()):
        if stat.S_ISREG(state[0]) and not UNSTEADY.search(path):
            found[os.path.relpath(path, home)] = content(Path(path), state)
    return found


State = tuple[int, int, int, int]


def states(folder: Path) -> dict[str, State]:
    """Return for every path whatever changes if somebody writes there."""
    paths = [os.path.join(top, name) for top, folders, files in os.walk(folder) for name in [*folders, *files]]
    found = [(path, os.lstat(path)) for path in paths]
    return {path: (one.st_mode, one.st_ino, one.st_size, one.st_ctime_ns) for path, one in found}


@functools.cache
def pristine(home: Path) -> dict[str, dict[str, State]]:
    """States of the fresh copy of each input, by its name; `restore` fills it."""
    return {}


def restore(inputs: Path, home: Path) -> None:
    """Copy the inputs that the last line changed, and remove what it added."""
    home.mkdir(exist_ok=True)
    before, names = pristine(home), sorted(os.listdir(inputs))
    now: dict[str, dict[str, State]] = {name: {} for name in os.listdir(home)}
    for path, state in states(home).items():
        now[os.path.relpath(path, home).partition("/")[0]][path] = state
    for name in {*now, *names}:
        if name in now and now[name] == before.get(name):
            continue
        target = home / name
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        elif name in now:
            target.unlink()
        if name in names:
            source = inputs / name
            if source.is_dir() and not source.is_symlink():
                shutil.copytree(source, target, symlinks=True)
            else:
                shutil.copy2(source, target, follow_symlinks=False)
            before[name] = {str(target): states(home)[str(target)], **states(target)}


def steady(text: str) -> str:
    """Return the text without durations and rates."""
    return VARYING.sub("", re.sub(r'"(\w*seconds\w*|time|at)": [^,\n]*', "", text))


@functools.lru_cache(1 << 10)
def content(path: Path, state: State) -> Any:
    if path.suffix == ".penstock" and path.read_bytes()[:1] == b"{":
        return {name: value for name, value in json.loads(path.read_bytes()).items() if name not in SIDE_FILE_RECORDS}
    return path.read_bytes()


def without(line: str) -> str:
    """The line without the option in its brackets."""
    return re.sub(r"\[\[(.*?)\]\]", lambda found: found[1].split(" | ")[0] if " | " in found[1] else "", line)


def within(line: str) -> str:
    """The line with the option in its brackets."""
    return re.sub(r"\[\[(.*?)\]\]", lambda found: found[1].split(" | ")[-1], line)


@pytest.mark.parametrize("line", ALL_ROWS, ids=lambda line: f"{command_of(line)} {option_of(line)}")
def test_the_option_changes_something(line: str, outcome: Any, outcomes: dict[str, Outcome]) -> None:
    plain_line = without(line)
    if plain_line not in outcomes:
        outcomes[plain_line] = outcome(plain_line)
    plain, changed = outcomes[plain_line], outcome(within(line))
    assert plain != changed
    assert plain["status"] != 70 != changed["status"]


def test_every_option_has_a_line() -> None:
    covered = {(command_of(line), option_of(line)) for line in ALL_ROWS}
    excused = EXEMPT.keys() | NOT_COVERED
    missing = [(name, option) for name, option in SLOTS if (name, option) not in covered | excused
               and (name.removeprefix("energon "), option) not in excused]  # fmt: skip
    assert not missing
    assert not covered & excused, "remove these excuses"
    assert excused <= set(SLOTS), "no such options"
    assert len(NOT_COVERED) <= 8, "this list may only shrink"
