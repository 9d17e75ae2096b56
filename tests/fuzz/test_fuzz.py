"""The fuzzer runs, repeats itself, and notices what it is there for."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.internals import PBIN_FORMAT as FORMAT

from penstock.errors import Corrupt
from penstock.formats import format_names


@pytest.fixture(scope="module")
def run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_run", Path(__file__).parent / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


NAMES = ["pbin", "jsonl", "flat-tokens", "megatron", "webdataset", "mds", "csv", "json-shards", "folder", "datatrove"]
NAMES += [
    "litdata",
    "levanter",
    "columns",
    "jsonl-files",
    "raw-tokens",
    "token-files",
    "parquet",
    "hf",
    "recipe",
    "metadataset",
    "state",
    "tokenizer",
]


@pytest.mark.parametrize("name", NAMES)
def test_some_cases(run: ModuleType, name: str, tmp_path: Path) -> None:
    count = 5 if name == "tokenizer" else 40  # each of these is loaded by a process of its own
    ran, findings = run.fuzz(name, 2, 60.0, range(count), tmp_path)
    assert findings == []
    assert ran == count


def test_all_that_can_be_opened_is_fuzzed(run: ModuleType) -> None:
    assert set(NAMES) == set(run.TARGETS)
    assert set(format_names()) - {"tsv", "xsv"} <= set(run.TARGETS)  # which are csv with other separators


def test_a_case_is_a_function_of_its_number(run: ModuleType, tmp_path: Path) -> None:
    target = run.packed_target(tmp_path / "made")
    assert run.make_case(target, 1, 5) == run.make_case(target, 1, 5)
    cases = [run.make_case(target, seed, number)[0]["set.pbin"] for seed in (1, 2) for number in range(20)]
    assert len(set(cases)) > 30


def _raise(*_: Any) -> list[Any]:
    raise OverflowError("too big")


def _hungry(*_: Any) -> list[Any]:
    np.ones(40 << 20, np.uint8)
    return []


def _refuse(*_: Any) -> Any:
    raise Corrupt("no")


def _hang(*_: Any) -> list[Any]:
    time.sleep(60)
    return []


@pytest.mark.parametrize(
    ("verb", "broken", "said"),
    [
        ("check", _raise, "OverflowError"),
        ("check", _hungry, "allowed are"),
        ("check", _hang, "no end after 1 s"),
        ("sniff", _raise, "OverflowError"),
        ("open", _refuse, "reading says"),
    ],
)
def test_findings(
    run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, broken: Any, said: str
) -> None:
    monkeypatch.setattr(type(FORMAT), verb, broken)
    if verb == "open":
        monkeypatch.setattr(type(FORMAT), "check", lambda *_: [])
    monkeypatch.setattr(run, "HANG_S", 1)
    _, findings = run.fuzz("pbin", 2, 60.0, range(1 if broken is _hang else 20), tmp_path)
    assert findings
    assert any(said in text for _, text in findings)
    assert len(run.distinct(findings)) <= 2
