"""Programs written for Modalities run on both packages, by one changed word; one that trains from YAML by one line."""

from __future__ import annotations

from pathlib import Path

import moved
import pytest

TOKENIZER = Path(__file__).resolve().parents[1] / "golden" / "modalities" / "tokenizers" / "bpe2"
BY_NAME = (r"^(\s*from )modalities\b", r"\1penstock.compat.modalities")
BY_REGISTRY = (r"^register = .*$", "from penstock.compat.modalities import register")


@pytest.mark.parametrize(
    ("name", "change"), [("pack_and_train", BY_NAME), ("chunks_and_masks", BY_NAME), ("yaml_run", BY_REGISTRY)]
)
def test_a_program(name: str, change: tuple[str, str], tmp_path: Path) -> None:
    programs = moved.programs(f"modalities_{name}", change, tmp_path)
    moved.require_equal("modalities", programs, tmp_path, [TOKENIZER])
