"""tensorstore from PyPI, in the environment of the zarr peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import child

from peers.environments import interpreter

NAME = "tensorstore"
_INSIDE = Path(__file__).resolve().parent / "inside" / "in_tensorstore.py"


def inside(function: str, **arguments: Any) -> Any:
    """Call a function of `inside/in_tensorstore.py` with the interpreter of that environment."""
    return child(interpreter("zarr"), _INSIDE, function, **arguments)
