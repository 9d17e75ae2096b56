"""One test a format, command and seam, on tiny data: `make smoke`, in the checkout or beside an installed wheel.

Nothing here imports from the checkout: `penstock` is the one that is installed. What needs a package that is not there
fails; with `--without-extras`, which a release tries, it is skipped by the hint of `MissingExtra`.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import MissingExtra


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without-extras", action="store_true", help="skip what needs a package that is not installed")


@pytest.fixture
def may_lack_extras(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--without-extras", default=False))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    try:
        return (yield)
    except MissingExtra as error:
        if not item.config.getoption("--without-extras", default=False):
            raise
        pytest.skip(str(error))
