"""Names of inputs whose files are called after them: no output has one."""

from __future__ import annotations

import os
from collections.abc import Iterable

from penstock.errors import ConfigError
from penstock.store.resolve import is_url


def require_other_name(inputs: Iterable[str], output: str) -> None:
    """That what an input is called does not mean the output from then on, as `m` of `m.bin` and `m.idx` would.

    Raises:
        ConfigError: it has the name of an input.
    """
    here = _place(output)
    same = next((one for one in inputs if _place(one) == here), None)
    if same is not None:
        what, hint = "the output is one of the inputs", "Choose another output"
        raise ConfigError(what, path=output, found=same, hint=hint)


def _place(path: str) -> str:
    folder, name = os.path.split(path.rstrip("/"))
    return path if is_url(path) else os.path.join(os.path.realpath(folder), name)
