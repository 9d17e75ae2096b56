"""A build hook of hatchling: stubs (`.pyi`) in the wheel for the modules that `penstock.compat` makes from a table."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface as _Hook
except ModuleNotFoundError:  # outside a build
    _Hook = object

TABLE = "src/penstock/compat/namespace.py"


def stubs(root: Path) -> dict[str, str]:
    """Return the text of each stub by its path in the source tree."""
    spec: Any = importlib.util.spec_from_file_location("namespace", root / TABLE)
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    found: dict[str, str] = {}
    for name in table.MODULES:
        is_package = any(other.startswith(f"{name}.") for other in table.MODULES)
        path = name.replace(".", "/") + ("/__init__" if is_package else "")
        found[f"src/penstock/compat/{path}.pyi"] = table.stub_of(name)
    return found


class CustomBuildHook(_Hook):
    """Add the stubs to a wheel; an editable install reads the source tree, which has none."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the stubs to a temporary directory, and include them."""
        self._folder = TemporaryDirectory(prefix="penstock-stubs-")
        if version == "editable":
            return
        for number, (path, text) in enumerate(stubs(Path(self.root)).items()):
            file = Path(self._folder.name, f"{number}.pyi")
            file.write_text(text, encoding="utf-8")
            build_data["force_include"][str(file)] = path.removeprefix("src/")

    def finalize(self, version: str, build_data: dict[str, Any], artifact: str) -> None:
        """Remove the temporary directory."""
        self._folder.cleanup()
