"""A function that kills its process; worker processes import this module by its name."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Dies:
    """Dies at sample 33 while a file is there."""

    marker: str

    def __call__(self, sample: Any) -> Any:
        if sample["__key__"] == "033" and os.path.exists(self.marker):
            os.kill(os.getpid(), signal.SIGKILL)
        return sample
