"""Says of a peer's module that has no counterpart what to do, where Python would say that there is none."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.abc import MetaPathFinder
from typing import Any

_PEERS: Mapping[str, str] = {"energon": "megatron.energon", "modalities": "modalities", "streaming": "streaming"}
"""Package below `penstock.compat` → the peer's."""
_PREFIX = "penstock.compat."


class _Absent(MetaPathFinder):
    """Asked last: no other finder has the module."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        del path, target
        peer, _, inside = fullname.removeprefix(_PREFIX).partition(".")
        if not fullname.startswith(_PREFIX) or peer not in _PEERS or not inside or inside.startswith("_"):
            return
        raise ModuleNotFoundError(
            f"No module named {fullname!r}: {_PEERS[peer]}.{inside} is a part of the original that has no counterpart "
            f"here. Public names are in {_PREFIX}{peer}; its guide lists replacements under `Differences`",
            name=fullname,
        )


def explain_absent_modules() -> None:
    """From now on."""
    if not any(isinstance(one, _Absent) for one in sys.meta_path):
        sys.meta_path.append(_Absent())
