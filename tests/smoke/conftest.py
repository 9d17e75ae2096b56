"""One test a format, command and seam, on tiny data: `make smoke`, in the checkout or beside an installed wheel.

Nothing here imports from the checkout: `penstock` is the one that is installed. What needs a package that is not there
is skipped, by the hint of `MissingExtra`.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import MissingExtra


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Any:
    try:
        return (yield)
    except MissingExtra as error:
        pytest.skip(str(error))
