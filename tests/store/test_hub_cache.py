"""A tokenizer by its name: from the Hub's local cache, never from the Hub."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from penstock.errors import NotFound
from penstock.prepare.tokens.engines import load_tokenizer, tokenizer_files
from penstock.prepare.tokens.vocabulary import load_decoder
from penstock.store.hub_cache import located
from penstock.store.local import LocalStore

TOKENIZER = Path(__file__).parents[1] / "golden/modalities/tokenizers/bpe2"
FIRST, MAIN = "a" * 40, "b" * 40


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As `huggingface_hub` lays it out: snapshots are links to blobs."""
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    root = tmp_path / "home/hub"
    for name in ("models--org--model", "models--openai-community--gpt2"):
        for revision in (FIRST, MAIN):
            folder = root / name / "snapshots" / revision
            folder.mkdir(parents=True)
            (root / name / "blobs").mkdir(exist_ok=True)
            for file in ("tokenizer.json", "tokenizer_config.json"):
                blob = root / name / "blobs" / f"{revision}-{file}"
                shutil.copy(TOKENIZER / file, blob)
                (folder / file).symlink_to(os.path.relpath(blob, folder))
        (root / name / "refs").mkdir()
        (root / name / "refs/main").write_text(MAIN)
    return root


def test_a_name_is_its_folder_in_the_cache(hub: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert located("org/model") == str(hub / "models--org--model/snapshots" / MAIN)
    assert located("gpt2") == str(hub / "models--openai-community--gpt2/snapshots" / MAIN)
    spec, _ = load_tokenizer("org/model", LocalStore())
    same, _ = load_tokenizer(TOKENIZER, LocalStore())
    assert (spec.name, spec.digest) == ("model", same.digest)
    assert load_decoder("gpt2")([70]) == load_decoder(TOKENIZER)([70])
    assert len(tokenizer_files("gpt2")) == 2
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    monkeypatch.setenv("HF_HOME", "/nowhere")
    assert located("gpt2").startswith(str(hub))


def test_what_is_here_comes_first(hub: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(TOKENIZER, tmp_path / "gpt2")
    assert located("gpt2") == "gpt2"


@pytest.mark.parametrize("name", ["gpt3", "org/other", "model", "org/model/x"])
def test_what_is_nowhere_says_how_to_fetch_it(
    hub: Path, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound) as raised:
        load_tokenizer(name, LocalStore())
    assert name.count("/") > 1 or f"hf download {name}" in str(raised.value)


def test_a_cache_that_is_damaged_is_none(hub: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (hub / "models--org--model/refs/main").write_bytes(b"\xff../../..")
    assert located("org/model").endswith(FIRST)  # a revision that is there, whatever main says
    shutil.rmtree(hub / "models--org--model/snapshots")
    with pytest.raises(NotFound):
        located("org/model")
