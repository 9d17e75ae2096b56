"""What the crash tests pack: the standard library's own text, partly compressed, and a tokenizer trained on it."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

NAMES = ("a.jsonl.gz", "b.jsonl", "tokenizer.json")
EOS = "<|end|>"
LIMIT_S = 300


def inputs_in(folder: Path, size_bytes: int) -> Path:
    """`make_inputs` in a process of its own: the tokenizer's threads must not be there when others fork."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, __file__, str(folder), str(size_bytes)], check=True, timeout=LIMIT_S)
    return folder


def know_tokenizers(folder: Path) -> None:
    """Have the tokenizers below a folder tried now, each in a process of its own: what is forked from here need not."""
    from tests.internals import require_loadable

    for path in sorted(folder.rglob("tokenizer.json")):
        require_loadable(path.read_bytes(), str(path))


def make_inputs(folder: Path, size_bytes: int) -> None:
    """`b.jsonl` of about `size_bytes`, `a.jsonl.gz` with the first tenth of it, and `tokenizer.json`."""
    from tokenizers import ByteLevelBPETokenizer

    texts = [path.read_text(encoding="utf-8") for path in sorted(Path(os.__file__).parent.glob("*.py"))]
    pieces = [piece for text in texts for piece in text.split("\n\n\n") if piece.strip()]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(pieces[:500], vocab_size=2000, special_tokens=[EOS], show_progress=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    lines: list[bytes] = []
    left_bytes = size_bytes
    while left_bytes > 0:
        lines.append(json.dumps({"text": pieces[len(lines) % len(pieces)], "n": len(lines)}).encode() + b"\n")
        left_bytes -= len(lines[-1])
    (folder / "b.jsonl").write_bytes(b"".join(lines))
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[: len(lines) // 10 + 1]), 1, mtime=0))


if __name__ == "__main__":
    make_inputs(Path(sys.argv[1]), int(sys.argv[2]))


def import_modules(names: Iterable[str]) -> None:
    """Import what a child imported, so that the next children need not.

    obstore doesn't work after a fork; the memory of torch makes each fork slower.
    """
    for name in names:
        if name not in sys.modules and name.partition(".")[0] not in ("obstore", "torch"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
