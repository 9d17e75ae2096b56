"""The laws of executors, held by threads that Penstock does not know of before they are installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.abc import Executor
from penstock.executors import make_executor
from penstock.testing import ExecutorSuite


class TestThreads(ExecutorSuite):
    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        with make_executor("threads", 2) as made:
            yield made
