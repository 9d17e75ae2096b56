"""Run every command on every kind of store, and compare the verdicts with `tests/urls/cells.json`.

python tests/urls/all_cells.py            # all cells
python tests/urls/all_cells.py --seed S   # a tenth, chosen by S
python tests/urls/all_cells.py --write    # all cells; rewrites cells.json
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.urls import servers  # noqa: E402
from tests.urls.cases import CASES  # noqa: E402
from tests.urls.cells import Cell, Driver, cells_of, chosen, local_files  # noqa: E402
from tests.urls.inputs import make_inputs  # noqa: E402
from tests.urls.places import Web, Where, az_place, s3_place  # noqa: E402
from tests.urls.table import FILE, KINDS, dump_cells, load_cells, same  # noqa: E402

from penstock.testing import FileServer  # noqa: E402

_OFFLINE = {
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_CONFIG_FILE": os.devnull,
    "NO_PROXY": "127.0.0.1,localhost",
    "PENSTOCK_REMOTE_TRIES": "3",
}


def main() -> int:
    asked = argparse.ArgumentParser()
    asked.add_argument("--seed")
    asked.add_argument("--write", action="store_true")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-cells-") as folder:
        found = try_cells(Path(folder), given.seed)
    if given.write:
        FILE.write_text(dump_cells(found))
    known = load_cells(FILE.read_text())
    wrong = [cell for cell, verdict in found.items() if not same(verdict, known.get(cell, ""))]
    for cell in wrong:
        print(f"{cell.case.name}, {cell.source} → {cell.target or 'the same'}: {found[cell]}")
        print(f"    cells.json: {known.get(cell, 'nothing')}")
    tried, refused = (sum(one.startswith(word) for one in found.values()) for word in ("tried", "refused"))
    away = "" if any("az" in (cell.source, cell.target) for cell in found) else "; az: NOT RUN (no Azurite)"
    print(f"{len(found)} cells: {tried} tried, {refused} refused, {len(wrong)} differ from cells.json{away}")
    return 1 if wrong or any(one.startswith("failed") for one in found.values()) else 0


def try_cells(folder: Path, seed: str | None) -> dict[Cell, str]:
    """The verdicts of all cells, or of a tenth."""
    os.environ |= {**_OFFLINE, "PENSTOCK_CACHE": str(folder / "cache")}
    make_inputs(folder / "made")
    with servers.s3() as url, FileServer() as web, servers.azure(folder / "azurite") as has_azure:
        places: dict[str, Where] = {"s3": s3_place(url), "http": Web(web)}
        if has_azure:
            places["az"] = az_place()
        driver = Driver(folder, local_files(folder / "made"), places)
        kinds = tuple(kind for kind in KINDS if kind in places)
        cells = [cell for case in CASES for cell in cells_of(case, kinds)]
        began, found = time.monotonic(), {}
        for number, cell in enumerate(cells if seed is None else chosen(cells, seed), 1):
            found[cell] = driver.verdict(cell)
            if number % 50 == 0:
                print(f"{number} cells, {time.monotonic() - began:.0f} s", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
