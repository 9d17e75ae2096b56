"""What is generated from the code is up to date."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.internals import explain_finding

from penstock.formats import BUILT_IN, get_format

ROOT = Path(__file__).parent.parent.parent


def test_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_code_of_a_finding_is_explained_without_a_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    for code, (meaning, fix) in importlib.import_module("findings").FINDINGS.items():
        shown = explain_finding(code.replace("<format>", "other").replace("<array>", "other"))
        assert " ".join(shown.split()).endswith(f"{meaning} fix: {fix}"), code


def test_every_code_of_a_finding_has_a_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    findings = importlib.import_module("findings")
    assert findings.codes_in_source() == findings.FINDINGS.keys()
    page = (ROOT / "docs/errors.md").read_text()
    assert {
        "<format>.old-chat",
        "<format>.chat-markers",
        "megatron.width",
        "shards.unlisted",
    } <= findings.FINDINGS.keys()
    assert [code for code in findings.FINDINGS if f"| `{code}` |" not in page] == []


def test_formats_that_were_read_in_a_store_are_remote_in_the_table() -> None:
    section = json.loads((ROOT / "tests/urls/cells.json").read_text())["copy"]
    assert section["columns"][:3] == ["disk → s3", "disk → az", "s3 → disk"]
    rows = section["rows"]
    tried = {name for verb, name, cells in rows if verb == "convert from" and cells[:3] == ["tried"] * 3}
    assert tried & set(BUILT_IN) > {"raw-tokens", "pbin"}
    assert [name for name in sorted(tried & set(BUILT_IN)) if not get_format(name).traits.remote] == []


def test_every_format_is_verified_and_read_remotely_as_the_page_of_formats_states() -> None:
    assert [name for name in BUILT_IN if not get_format(name).traits.verify] == []
    assert [name for name in BUILT_IN if not get_format(name).traits.remote] == []


def test_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 200


def test_figures_have_three_digits() -> None:
    table = (ROOT / "README.md").read_text().partition("<!-- measured: generated -->")[2].partition("<!-- /measured")[0]
    figures = re.findall(r"(?<![\w.])\d[\d.,]*(?=[ ×])", table)
    assert len(figures) > 15
    assert [one for one in figures if "." in one and len(one.replace(".", "").lstrip("0")) > 3] == []


def test_the_measured_table_has_a_peer_in_each_row_and_limits() -> None:
    table = (ROOT / "README.md").read_text().partition("<!-- measured: generated -->")[2].partition("<!-- /measured")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 6
    assert all(len(row) == 5 and row[2].endswith(")") and row[3].endswith("×") for row in rows)
    assert sum("% of " in row[4] for row in rows) >= 5
