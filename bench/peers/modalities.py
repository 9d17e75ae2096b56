"""Modalities 0.5.0 from PyPI, in its own environment: whole commands, and functions that run in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness import child

from peers.environments import interpreter

NAME = "Modalities"
# In a separate folder, because next to this file it would import this file as the package.
_INSIDE = Path(__file__).resolve().parent / "inside" / "in_modalities.py"


def python() -> Path:
    """Return its interpreter; create the environment if missing."""
    return interpreter("modalities")


def command(*arguments: object) -> list[object]:
    """Return a `modalities` command."""
    return [python().parent / "modalities", *arguments]


def index_command(jsonl: Path, idx: Path) -> list[object]:
    """Return a command that creates a raw index and overwrites an old one."""
    return command("data", "create_raw_index", jsonl, "--index_path", idx, "--file_existence_policy", "override")


def pack_command(jsonl: Path, idx: Path, out: Path, tokenizer: Path, eos: str, n_workers: int) -> list[object]:
    """Return a packing command; its settings are written next to the output."""
    settings: dict[str, Any] = {
        "src_path": str(jsonl),
        "dst_path": str(out),
        "index_path": str(idx),
        "jq_pattern": ".text",
        "num_cpus": n_workers,
        "eod_token": eos,
        "processing_batch_size": 100,
        "raw_samples_queue_size": 300,
        "processed_samples_queue_size": 300,
    }
    model = {"pretrained_model_name_or_path": str(tokenizer), "padding": False, "truncation": False}
    kind = {"component_key": "tokenizer", "variant_key": "pretrained_hf_tokenizer", "config": model}
    config = out.with_suffix(".yaml")
    # JSON is valid YAML.
    config.write_text(json.dumps({"settings": settings, "tokenizer": kind}))
    return command("data", "pack_encoded_data", config, "--file_existence_policy", "override")


def inside(function: str, **arguments: Any) -> Any:
    """Call a function of `inside/in_modalities.py` with the interpreter of Modalities."""
    return child(python(), _INSIDE, function, **arguments)


def inside_command(function: str, **arguments: Any) -> list[object]:
    """Return the same call as a whole command, including imports."""
    return [python(), _INSIDE, function, json.dumps(arguments, default=str)]
