"""Types of the arrays that Modalities' datasets deliver: torch has no use for most unsigned ones."""

from __future__ import annotations

from typing import Any

import numpy as np

IN_RAM: dict[int, type[np.integer[Any]]] = {1: np.uint8, 2: np.int32, 4: np.int64}
"""Width of a token on disk in bytes → type in memory."""
