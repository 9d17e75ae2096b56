"""Tokenizers in the local cache of the Hugging Face Hub: names such as `gpt2` are found there, and never downloaded.

The cache is `$HF_HUB_CACHE`, else `hub` in `$HF_HOME` or `~/.cache/huggingface`:
`models--<owner>--<name>/refs/main` names a revision, whose files are in `snapshots/<revision>`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from penstock.errors import NotFound

_NAME = re.compile(r"^[A-Za-z0-9][\w-]*(\.\d[\w-]*)*(/[\w.-]+)?$")
"""Name on the Hub, such as `gpt2` or `meta-llama/Llama-3.1-8B`, not a file name."""

_OLD_OWNERS = {"gpt2": "openai-community", "bert-base-uncased": "google-bert", "roberta-base": "FacebookAI"}
"""Names that originally had no owner on the Hub → their current owners."""

_REVISION = re.compile(r"[0-9a-f]{40}")
_MOST_REF_BYTES = 100


def located(tokenizer: str) -> str:
    """Return the path of a tokenizer: `tokenizer` itself, or the folder of this name in the Hub's local cache.

    Raises:
        NotFound: neither exists; the hint is the command that downloads it.
    """
    if not _NAME.match(tokenizer) or os.path.lexists(os.path.expanduser(tokenizer)):
        return tokenizer
    owners = [tokenizer] + ([f"{_OLD_OWNERS[tokenizer]}/{tokenizer}"] if tokenizer in _OLD_OWNERS else [])
    found = next((folder for name in owners for folder in _snapshots(name)), None)
    if found is not None:
        return str(found)
    folder = tokenizer.rpartition("/")[2]
    if folder.endswith((".json", ".model")):
        raise NotFound("the tokenizer file doesn't exist", path=tokenizer, hint="Check the path")
    fetch = f"`hf download {tokenizer} --include 'tokenizer*' --local-dir {folder}`"
    hint = f"Tokenizers aren't downloaded. Run {fetch}, then use --tokenizer {folder}/"
    raise NotFound("the tokenizer is neither a local path nor in the Hugging Face cache", path=tokenizer, hint=hint)


def _snapshots(name: str) -> list[Path]:
    """Return the folders with a tokenizer of this name, the revision of `main` first."""
    root = _cache() / f"models--{name.replace('/', '--')}"
    try:
        with open(root / "refs/main", "rb") as file:
            main = file.read(_MOST_REF_BYTES).decode("ascii", "replace").strip()
        revisions = sorted(os.listdir(root / "snapshots"), key=lambda one: (one != main, one))
    except OSError:
        return []
    folders = [root / "snapshots" / one for one in revisions if _REVISION.fullmatch(one)]
    return [one for one in folders if any(_is_tokenizer(entry) for entry in os.listdir(one))]


def _is_tokenizer(name: str) -> bool:
    return name == "tokenizer.json" or name.endswith((".model", ".tiktoken"))


def _cache() -> Path:
    home = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub"))
