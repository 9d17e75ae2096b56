"""What a notebook shows of sources, streams, loaders, plans, findings and batches, run by nbclient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from tests.internals import PLAN_MODULE

import penstock as ps

pytestmark = [pytest.mark.filterwarnings("ignore")]

CELLS = {
    "import penstock as ps; source = ps.open('a.pbin')\nsource": ("documents", "40"),
    "stream = ps.Blend({'x': ps.Chunk(8, labels='shift')(source)}, {'x': 1}, seed=1)\nstream": ("100.0%", "Chunk"),
    "loader = ps.Loader(stream, 4, rank=0, world=1, workers=0)\nbatch = next(iter(loader))\nloader": (
        "global batch",
        "x",
    ),
    f"from {PLAN_MODULE} import plan\nplan(stream, global_batch=4, steps=10)": ("40", "padding"),
    "ps.verify('a.pbin')": ("No findings",),
    "ps.verify('broken.pbin')": ("1 error",),
    "%load_ext penstock\nbatch": ("Batch of 4 samples", "start of a document", "loss_mask"),
}


def test_each_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    for name in ("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        for number in range(40):
            writer.write({"tokens": [*range(1, 2 + number), 0]})
    data = (tmp_path / "a.pbin").read_bytes()
    (tmp_path / "broken.pbin").write_bytes(data[:-7])
    book: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in CELLS])
    NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for cell, words in zip(book.cells, CELLS.values(), strict=True):
        [shown] = [one["data"]["text/html"] for one in cell.outputs if "text/html" in one.get("data", {})]
        assert shown.startswith('<div class="penstock">')
        assert "<script" not in shown
        for word in words:
            assert word in shown, (cell.source, word)
