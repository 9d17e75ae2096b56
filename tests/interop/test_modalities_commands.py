"""Every command of Modalities, theirs and ours, on the same fresh input: the same bytes wherever theirs are right.

Both work in folders of the same layout and with the same relative paths, so that files that hold paths are equal too.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fresh
import numpy as np
import peers
import pytest
import sentencepiece
import yaml

import penstock as ps

N_PARTS = 3
EOD = fresh.EOS


@dataclass(frozen=True, slots=True)
class Both:
    """The folders of both sides, after the same commands."""

    ours: Path
    theirs: Path
    seed: int
    errors: list[str | None]


def commands(rng: random.Random) -> list[list[str]]:
    """Command lines, one after another; what one makes the next ones use."""
    parts = [f"parts/part{n}" for n in range(N_PARTS)]
    found = [["create_raw_index", f"{part}.jsonl"] for part in parts]
    found += [["create_raw_index", "parts/sp.jsonl"]]
    found += [["create_raw_index", "parts/part0.jsonl", "--index_path", "new/folder/x.y.idx"]]
    found += [["pack_encoded_data", f"configs/part{n}.yaml"] for n in range(N_PARTS)]
    found += [["pack_encoded_data", f"configs/{name}.yaml"] for name in (*CONFIGS, "sp")]
    for policy in ("skip", "override"):
        found.append(["pack_encoded_data", "configs/part0.yaml", "--file_existence_policy", policy])
        found.append(["create_raw_index", "parts/part0.jsonl", "--file_existence_policy", policy])
    found.append(["merge_packed_data", *(f"{part}.pbin" for part in parts), "out/merged.pbin"])
    found.append(["merge_packed_data", "parts/part1.pbin", "out/merged_one.pbin"])
    for number, seed in enumerate((0, 42, -3, rng.randrange(2**40))):
        batch_size = str(rng.randint(1, 200))
        places = ["--input_data_path", "parts/part1.pbin", "--output_data_path", f"out/shuffled{number}.pbin"]
        found.append(["shuffle_tokenized_data", *places, "--seed", str(seed), "--batch_size", batch_size])
        places = ["--input_data_path", "parts/part1.jsonl", "--output_data_path", f"out/shuffled{number}.jsonl"]
        found.append(["shuffle_jsonl_data", *places, "--seed", str(seed)])
    global_seed = str(rng.randrange(2**33))
    for chunk in range(4):
        lists = ["--input_file_list_path", "configs/list.txt", "--input_data_root_path", "parts"]
        numbers = ["--chunk_id", str(chunk), "--num_chunks", "4", "--global_seed", global_seed]
        found.append(
            ["create_shuffled_dataset_chunk", *lists, "--output_chunk_file_path", f"out/{chunk}.pbin", *numbers]
        )
        found.append(
            ["create_shuffled_jsonl_chunk", *lists, "--output_chunk_file_path", f"out/{chunk}.jsonl", *numbers]
        )
    found.append(["prepare_instruction_tuning_data", "--config_file_path", "configs/instruct.yaml"])
    return [["data", *one] for one in found]


# Settings of the tokenizer → the configuration's name.
CONFIGS: dict[str, dict[str, Any]] = {
    "special": {"special_tokens": {"pad_token": "^", "additional_special_tokens": ["$", "Ġthe"]}},
    "cut": {"truncation": True, "max_length": 9},
    "cut_framed": {"truncation": True, "max_length": 6, "pretrained_model_name_or_path": "tokenizers/framed2"},
    "padded": {"padding": False, "max_length": 5},
    "paths": {},
}


def write_inputs(rng: random.Random, folder: Path, golden: Path) -> None:
    """Documents, tokenizers and configurations."""
    for name in ("parts", "configs", "out"):
        (folder / name).mkdir(parents=True)
    for n in range(N_PARTS):
        fresh.write_documents(rng, folder / "parts" / f"part{n}.jsonl", rng.randint(30, 150))
    fresh.make_tokenizers(rng, folder / "tokenizers", golden / "modalities" / "tokenizers")
    for n in range(N_PARTS):
        write_config(rng, folder / "configs" / f"part{n}.yaml", f"parts/part{n}", f"parts/part{n}.pbin", {})
    for name, tokenizer in CONFIGS.items():
        write_config(rng, folder / "configs" / f"{name}.yaml", "parts/part1", f"out/{name}.pbin", tokenizer)
    write_sentencepiece(rng, folder)
    (folder / "configs" / "list.txt").write_text("\n".join(f"part{n}.anything" for n in range(N_PARTS)))
    write_chats(rng, folder)


def write_sentencepiece(rng: random.Random, folder: Path) -> None:
    """A SentencePiece model, and a configuration with it."""
    texts = [text.replace("\0", "") for text in (fresh.text(rng)[:2000] for _ in range(300))]
    with (folder / "tokenizers" / "sp.model").open("wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            vocab_size=400,
            model_type=rng.choice(["unigram", "bpe"]),
            byte_fallback=rng.random() < 0.5,
            hard_vocab_limit=False,
            minloglevel=2,
        )
    # A text without a token ends the original's work in silence, and what comes after it is lost.
    encode = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizers" / "sp.model")).encode
    lines = [json.dumps({"text": text}) for text in texts if encode(text)]
    (folder / "parts" / "sp.jsonl").write_text("".join(f"{line}\n" for line in lines))
    path = folder / "configs" / "sp.yaml"
    write_config(rng, path, "parts/sp", "out/sp.pbin", {})
    config = yaml.safe_load(path.read_text())
    config["settings"]["eod_token"] = "</s>"
    config["tokenizer"] |= {
        "variant_key": "pretrained_sp_tokenizer",
        "config": {"tokenizer_model_file": "tokenizers/sp.model"},
    }
    path.write_text(yaml.safe_dump(config))


def write_config(rng: random.Random, path: Path, stem: str, output: str, tokenizer: dict[str, Any]) -> None:
    """A configuration of the packing, with interpolations."""
    model = {"pretrained_model_name_or_path": "tokenizers/bpe2", "padding": False, "truncation": False} | tokenizer
    config = {
        "here": {"stem": stem, "count": rng.randint(1, 40), "cpus": "${node_env:num_cpus}"},
        "file": "${modalities_env:config_file_path}",
        "settings": {
            "src_path": "${here.stem}.jsonl",
            "dst_path": output,
            "index_path": "${..here.stem}.idx",
            "jq_pattern": rng.choice([".text", '.["text"]', ".text | tostring"]),
            "num_cpus": "${here.cpus}",
            "eod_token": EOD,
            "processing_batch_size": "${.raw_samples_queue_size}",
            "raw_samples_queue_size": "${here.count}",
            "processed_samples_queue_size": 300,
        },
        "tokenizer": {
            "component_key": "tokenizer",
            "variant_key": "pretrained_hf_tokenizer",
            "config": model,
        },
    }
    path.write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")


def write_chats(rng: random.Random, folder: Path) -> None:
    """Conversations, and the configurations of their command."""
    rows: list[dict[str, Any]] = []
    for number in range(60):
        turns = [
            {rng.choice(("from", "role")): rng.choice(("human", "gpt")), "value": fresh.text(rng)[:300]}
            for _ in range(rng.randint(1, 4))
        ]
        rows.append({"id": number, "talk": turns, "odd": [1.5, None, "é"]})
    lines = [json.dumps(row, ensure_ascii=rng.random() < 0.5) + "\n" for row in rows]
    (folder / "chats.jsonl").write_text("".join(lines), encoding="utf-8", newline="")
    pack = folder / "configs" / "for_chats.yaml"
    write_config(rng, pack, "unused", "unused", {})
    given = yaml.safe_load(pack.read_text())
    del given["file"]  # the original would write a path as a Python object, which YAML can't load safely
    given["settings"] |= {"jq_pattern": ".chat", "src_path": "x", "index_path": "x"}
    pack.write_text(yaml.safe_dump(given))
    train, val = rng.randint(30, 60), rng.randint(10, 30)
    template = (
        "{{ chat_template_data.head }}\n{% for m in messages %}\n{% set who = m['from'] or m.role %}\n"
        "{{ who + ': ' + m.value + ('$' if who == 'Assistant' else '') }}\n{{ m | tojson }}\n{% endfor %}\n"
    )
    config = {
        "settings": {
            "src_path": "chats.jsonl",
            "dst_path": "out/chats.jsonl",
            "messages_key": "talk",
            "split_config": {
                "splitting": {"train": train, "val": val, "test": 100 - train - val},
                "seed": rng.randrange(2**32),
            },
            "pbin_creation_config_file_path": "configs/for_chats.yaml",
        },
        "instruction_data_transformation": {"role_mapping": {"human": "User", "gpt": "Assistant"}},
        "jinja2_chat_template": template,
        "chat_template_data": {"head": "Ærø"},
    }
    (folder / "configs" / "instruct.yaml").write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, golden: Path) -> Both:
    """All commands, run by both."""
    seed = int(os.environ.get("PENSTOCK_INTEROP_SEED", "0")) + 1
    root = tmp_path_factory.mktemp("commands")
    write_inputs(random.Random(seed), root / "ours", golden)
    shutil.copytree(root / "ours", root / "theirs")
    lines = commands(random.Random(seed))
    errors = peers.run_script(
        "modalities", peers.SCRIPTS / "modalities_cli.py", {"folder": root / "theirs", "commands": lines}
    )
    for line in lines:
        penstock = [str(Path(sys.executable).parent / "penstock"), "modalities", *line]
        done = subprocess.run(penstock, capture_output=True, text=True, cwd=root / "ours")
        assert done.returncode == 0, (line, done.stdout, done.stderr)
    return Both(root / "ours", root / "theirs", seed, errors)


def files_of(folder: Path) -> dict[str, Path]:
    """All files but those that the original does not know."""
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in found.items() if not name.endswith(".penstock")}


def test_theirs_ended_well(both: Both) -> None:
    assert both.errors == [None] * len(both.errors)


def test_the_same_files(both: Both) -> None:
    assert files_of(both.ours).keys() == files_of(both.theirs).keys()


def test_the_same_bytes(both: Both) -> None:
    theirs = files_of(both.theirs)
    differ = [name for name, path in files_of(both.ours).items() if path.read_bytes() != theirs[name].read_bytes()]
    assert differ == ["out/merged.pbin"]


def test_their_merge_is_wrong_and_ours_is_not(both: Both) -> None:
    ours, theirs = (folder / "out" / "merged.pbin" for folder in (both.ours, both.theirs))
    data_bytes = struct.unpack("<Q", ours.read_bytes()[:8])[0]
    assert ours.read_bytes()[: 12 + data_bytes] == theirs.read_bytes()[: 12 + data_bytes]
    assert [one.code for one in ps.verify(theirs)] == ["pbin.merged-offsets"]
    assert ps.verify(ours) == []
    source: Any = ps.open(ours)
    expected = [ps.open(both.theirs / "parts" / f"part{n}.pbin") for n in range(N_PARTS)]
    documents = [one[i]["tokens"] for one in expected for i in range(len(one))]
    assert len(source) == len(documents)
    for i, document in enumerate(documents):
        np.testing.assert_array_equal(source[i]["tokens"], document)


def test_they_read_our_merge(both: Both, tmp_path: Path) -> None:
    ours = both.ours / "out" / "merged.pbin"
    packed = {"documents": [[ours, tmp_path / "read.npz"]]}
    peers.run_script("modalities", peers.SCRIPTS / "modalities_packed.py", packed)
    source: Any = ps.open(ours)
    with np.load(tmp_path / "read.npz") as theirs:
        np.testing.assert_array_equal(np.cumsum(theirs["lengths"]), source.doc_starts[1:])
        np.testing.assert_array_equal(theirs["tokens"], source.tokens(0, source.num_tokens))
