"""One test a format, command and seam, on tiny data: `make smoke`, in the checkout or beside an installed wheel.

Nothing here imports from the checkout: `penstock` is the one that is installed. What needs a package that is not there
fails; with `--without-extras`, which a release tries, it is skipped by the hint of `MissingExtra`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import MissingExtra


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without-extras", action="store_true", help="skip what needs a package that is not installed")


@pytest.fixture
def may_lack_extras(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--without-extras", default=False))


@pytest.fixture
def skip_what_lacks(may_lack_extras: bool) -> Callable[[Any, str], None]:
    """Skips by the exit status of a command, or by what it says where its status is another tool's."""

    def skip(status: Any, said: str) -> None:
        if may_lack_extras and (status == MissingExtra.exit_status or "is needed but not" in said):
            pytest.skip(said)

    return skip


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    try:
        return (yield)
    except MissingExtra as error:
        if not item.config.getoption("--without-extras", default=False):
            raise
        pytest.skip(str(error))
