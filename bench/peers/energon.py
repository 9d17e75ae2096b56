"""megatron-energon 7.4.1 from PyPI, in its own environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import child

from peers.environments import interpreter

NAME = "megatron-energon"
_INSIDE = Path(__file__).resolve().parent / "inside" / "in_energon.py"


def inside(function: str, **arguments: Any) -> Any:
    """Call a function of `inside/in_energon.py` with the interpreter of Energon."""
    return child(interpreter("energon"), _INSIDE, function, **arguments)


def command(*arguments: object) -> list[object]:
    """Return an `energon` command."""
    return [interpreter("energon"), "-m", "megatron.energon.cli.main", *arguments]
