"""Extension for griffe: entries of docstrings for several names, such as `a, b: …`, become one entry for each name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).resolve().parent))

from docstrings import with_separate_names


class SeparateNames(griffe.Extension):
    """Rewrite each docstring before it is parsed."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_separate_names(obj.docstring.value)
