"""Optional packages: the import, or an error that names the pip extra."""

from __future__ import annotations

import importlib
from typing import Any

from penstock.errors import MissingExtra


def require(module: str, *, extra: str) -> Any:
    """Import `module`, or say which extra brings it.

    Args:
        module: dotted module name, such as `"tokenizers"`.
        extra: the extra of the `penstock` distribution that installs it.

    Raises:
        MissingExtra: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise
        raise MissingExtra(
            f"the package {module.partition('.')[0]!r} is needed here and not installed",
            hint=f"Install it with: pip install 'penstock[{extra}]'",
        ) from error
