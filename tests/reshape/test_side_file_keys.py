"""Side files of one format have the same keys, whatever verb wrote them.

Besides the options of its writer, each verb records its own under `options`, and its name as `command`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps

TOKENS = {"pbin": ".pbin", "megatron": ".idx", "flat-tokens": ".zarr"}
SAMPLES = ("mds", "json-shards", "webdataset", "jsonl")
VERBS: dict[str, Callable[[Path, Path], object]] = {
    "convert": lambda source, target: ps.convert(source, target, to=_format_of(target)),
    "merge": lambda source, target: ps.merge([source], target),
    "shuffle": lambda source, target: ps.shuffle(source, target, seed=1),
    "split": lambda source, target: ps.split(source, target, ratio=[1, 1]),
    "filter": lambda source, target: ps.filter(source, target, **_condition(_format_of(target))),
}
EXEMPT = {("webdataset", "filter"): "tars are not filtered"}
OTHER_OPTIONS = {
    (format, verb): reason
    for format in ("mds", "json-shards")
    for verb, reason in (
        ("merge", "shards are copied unchanged, with the options of the writers that made them"),
        ("convert", "shards are joined from groups, whose options follow from the plan that is recorded"),
    )
}
"""Where the options of the format's writer are not recorded, and why."""


def _format_of(target: Path) -> str:
    return target.parent.name


def _condition(format: str) -> dict[str, Any]:
    return {"min_tokens": 1} if format in TOKENS else {"where": "text != 't1'"}


def _create(path: Path, format: str) -> None:
    options: dict[str, Any] = {"columns": {"text": "str"}} if format in ("mds", "json-shards") else {}
    options |= {"token_bytes": 2} if format in ("pbin", "megatron") else {}
    with ps.create(path, format=format, **options) as writer:
        for number in range(4):
            tokens = {"tokens": np.array([1, number, 0], np.uint16)}
            key = {"__key__": f"k{number}", "txt": "x"} if format == "webdataset" else {"text": f"t{number}"}
            writer.write(tokens if format in TOKENS else key)


def _side_file(output: Path) -> dict[str, Any]:
    """The side file of an output, or of the first of its parts."""
    files = sorted(output.parent.glob(f"{output.name}*.penstock")) or sorted(output.rglob("*.penstock"))
    return json.loads(files[0].read_text())


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("format", [*TOKENS, *SAMPLES])
def test_all_verbs_write_the_same_keys(tmp_path: Path, format: str, verb: str) -> None:
    if (format, verb) in EXEMPT:
        return
    suffix = TOKENS.get(format, ".jsonl" if format == "jsonl" else "")
    source, target = tmp_path / f"source{suffix}", tmp_path / format / f"out{'' if verb == 'split' else suffix}"
    target.parent.mkdir()
    _create(source, format)
    VERBS[verb](source, target)
    expected, found = _side_file(source), _side_file(target)
    assert found.keys() == expected.keys()
    assert found["options"]["command"] == verb
    if (format, verb) not in OTHER_OPTIONS:
        assert found["options"].keys() >= expected["options"].keys()
