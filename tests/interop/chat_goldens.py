"""Write the goldens of chats anew, with the pinned transformers: `python tests/interop/chat_goldens.py`.

`make interop` makes the environment of transformers, and compares the goldens that are committed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import peers
from tests.prepare.chat_styles import ALL_STYLES, SHAPES, STYLES, conversations, goldens_text, write_tokenizer

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SCRIPT = peers.SCRIPTS / "transformers_chat.py"


def render_shapes(folder: Path) -> dict[str, list[dict[str, Any] | None]]:
    """Return style → what transformers makes of each of `SHAPES`; None for one that it refuses."""
    cases = [_case(folder / name, name, list(SHAPES.values())) for name in ALL_STYLES]
    return dict(zip(ALL_STYLES, peers.run_script("transformers", SCRIPT, cases), strict=True))


def render_conversations(folder: Path) -> dict[str, Any]:
    """Return style → what transformers makes of its plain conversations."""
    cases = [_case(folder / f"plain-{name}", name, conversations(style)) for name, style in STYLES.items()]
    return dict(zip(STYLES, peers.run_script("transformers", SCRIPT, cases), strict=True))


def _case(folder: Path, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    write_tokenizer(GOLDEN / "modalities" / "tokenizers" / "bpe2", folder, ALL_STYLES[name])
    return {"tokenizer": str(folder), "conversations": rows, "marked": True}


if __name__ == "__main__":
    peers.ensure("transformers")
    with tempfile.TemporaryDirectory() as temporary:
        (GOLDEN / "chat" / "shapes.json").write_text(goldens_text(render_shapes(Path(temporary))))
        (GOLDEN / "chat" / "expected.json").write_text(json.dumps(render_conversations(Path(temporary))))
