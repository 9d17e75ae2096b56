"""mosaicml-streaming 0.13.0 from PyPI, in its own environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import ROOT, child

from peers.environments import interpreter

NAME = "mosaicml-streaming"
READER = f"{NAME} Reader"
_INSIDE = Path(__file__).resolve().parent / "inside" / "in_streaming.py"
_STUBS = ROOT / "tests" / "interop" / "stubs"


def inside(function: str, **arguments: Any) -> Any:
    """Call a function of `inside/in_streaming.py` with the interpreter of mosaicml-streaming."""
    return child(interpreter("streaming"), _INSIDE, function, python_path=_STUBS, **arguments)
