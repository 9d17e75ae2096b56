"""A pytest plugin: Penstock's names in the place of a peer's, and which tests call them.

$UPSTREAM_RESULTS gets `{test: [outcome, whether it calls ours, error]}`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

STREAMING = {
    **dict.fromkeys(("Stream", "streams_registry"), ("streaming.base.stream", "base.stream")),
    **dict.fromkeys(("CSVWriter", "TSVWriter", "XSVWriter"), ("streaming.base.format.xsv.writer", "base.format")),
    "JSONWriter": ("streaming.base.format.json.writer", "base.format"),
    "LocalDataset": ("streaming.base.local", "base.local"),
    "MDSWriter": ("streaming.base.format.mds.writer", "base.format.mds"),
    "StreamingDataLoader": ("streaming.base.dataloader", "base.dataloader"),
    "StreamingDataset": ("streaming.base.dataset", "base.dataset"),
    **dict.fromkeys(
        ("bytes_to_int", "clean_stale_shared_memory", "merge_index", "number_abbrev_to_int", "retry"),
        ("streaming.base.util", "base.util"),
    ),
}
"""Name → its module in the original, and below `penstock.compat.streaming`."""

_results: dict[str, list[Any]] = {}
_called: set[str] = set()


def _note() -> None:
    _called.add(os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0])


def _watched(ours: Any) -> Any:
    """The same class or function; its use by a test is noted."""
    if inspect.isclass(ours):
        made: Any = ours.__init__

        @functools.wraps(made)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            _note()
            made(self, *args, **kwargs)

        ours.__init__ = init
        return ours
    if not inspect.isfunction(ours):
        return ours

    @functools.wraps(ours)
    def call(*args: Any, **kwargs: Any) -> Any:
        _note()
        return ours(*args, **kwargs)

    return call


def _bind() -> None:
    """Replace the original's names by ours in every module that has them."""
    importlib.import_module("streaming")
    swapped: dict[int, tuple[Any, Any]] = {}
    for name, (home, ours) in STREAMING.items():
        theirs = getattr(importlib.import_module(home), name)
        replacement = getattr(importlib.import_module(f"penstock.compat.streaming.{ours}"), name)
        swapped[id(theirs)] = (theirs, _watched(replacement))
    batching: Any = importlib.import_module("streaming.base.batching")
    swapped[id(batching.generate_work)] = (batching.generate_work, _work_of(batching.generate_work))
    for module in [one for name, one in sys.modules.items() if name.partition(".")[0] == "streaming"]:
        for name, value in list(vars(module).items()):
            found = swapped.get(id(value))
            if found is not None and found[0] is value:
                setattr(module, name, found[1])


def _work_of(theirs: Any) -> Any:
    """The original's table of an epoch; of a dataset of ours the one that its order makes."""
    ours = importlib.import_module("penstock.compat.streaming").StreamingDataset

    def generate_work(batching_method: str, dataset: Any, world: Any, epoch: int, sample_in_epoch: int) -> Any:
        if not isinstance(dataset, ours):
            return theirs(batching_method, dataset, world, epoch, sample_in_epoch)
        _note()
        given, before = dataset.batching_method, dict(os.environ)
        ranks, per_node = world.num_nodes * world.ranks_per_node, world.ranks_per_node
        os.environ.update(WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(per_node))
        dataset.batching_method = batching_method
        try:
            return dataset.order(world.workers_per_rank).epoch_ids(epoch=epoch)
        finally:
            dataset.batching_method = given
            os.environ.clear()
            os.environ.update(before)

    return generate_work


_bind()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    report = (yield).get_result()
    if report.when != "call" and report.passed:
        return
    before = _results.get(report.nodeid)
    if before is None or before[0] == "passed":  # a fixture that fails afterwards counts
        error = "" if call.excinfo is None else f"{call.excinfo.typename}: {call.excinfo.value}"[:300]
        _results[report.nodeid] = [report.outcome, report.nodeid in _called, error]


def pytest_sessionfinish(session: Any) -> None:
    lacking = {one.nodeid: ["unknown", False, "never ended"] for one in session.items if one.nodeid not in _results}
    Path(os.environ["UPSTREAM_RESULTS"]).write_text(json.dumps({**_results, **lacking}))
