"""Every verb once over S3, and every format once in each direction, as recorded in `cells.json`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.internals import COMMANDS
from tests.urls.cases import CASES, READ, WRITTEN, Case
from tests.urls.cells import Cell, Done, Driver, cells_of, difference, local_files, refusal
from tests.urls.inputs import make_inputs
from tests.urls.places import Web, s3_place
from tests.urls.table import FILE, KINDS, UNTRIED, dump_cells, load_cells, same

from penstock.formats import BUILT_IN, get_format
from penstock.testing import FileServer

_ELSEWHERE = {
    "demo": "makes its own data, on this machine",
    "mount": "needs FUSE",
    "doctor": "looks at this machine",
    "completion": "takes no data",
    "cache": "a folder of this machine",
    "modalities": "takes paths of this machine, as the original",
    "energon": "the verbs of the same names",
}


def _once() -> list[Cell]:
    """A cell a verb, and of each format one from S3 and one to it; the web is read once, and once refused."""
    found: dict[tuple[str, ...], Cell] = {}
    for case in CASES:
        if case.verb == "convert from":
            found[("from", case.format)] = Cell(case, "s3", "local")
        elif case.verb == "convert to":
            found[("to", case.format)] = Cell(case, "local", "s3")
        elif case.kind == "copy":
            found.setdefault((case.verb,), Cell(case, "s3", "s3"))
        else:
            found.setdefault((case.verb,), Cell(case, "s3"))
    web = [Cell(case, "http") for case in CASES if case.name in ("info pbin", "index beside")]
    return [*found.values(), *web]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, s3_server: str) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("cells")
    with pytest.MonkeyPatch.context() as patch, FileServer() as web:
        patch.setenv("PENSTOCK_CACHE", str(folder / "cache"))
        make_inputs(folder / "made")
        yield Driver(folder, local_files(folder / "made"), {"s3": s3_place(s3_server), "http": Web(web)})


@pytest.fixture(scope="module")
def known() -> dict[Cell, str]:
    return load_cells(FILE.read_text())


@pytest.mark.parametrize("cell", _once(), ids=lambda cell: f"{cell.case.name}, {cell.source} to {cell.target}")
def test_a_cell(cell: Cell, driver: Driver, known: dict[Cell, str]) -> None:
    verdict = driver.verdict(cell)
    assert same(verdict, known[cell]), verdict


def test_the_file_has_every_cell(known: dict[Cell, str]) -> None:
    assert known.keys() == {cell for case in CASES for cell in cells_of(case, KINDS)}
    assert all(one in ("tried", UNTRIED) or one.startswith("refused: ") for one in known.values())
    assert dump_cells(known) == FILE.read_text()


def test_every_verb_and_every_format_have_cells() -> None:
    verbs = {case.line.split()[0] for case in CASES}
    assert verbs | _ELSEWHERE.keys() == COMMANDS.keys()
    assert {one.removesuffix(" with planes") for one in READ} | {"xsv"} == BUILT_IN.keys() | {
        "parquet folder",
        "csv file",
    }
    assert {one.partition(" ")[0] for one in WRITTEN} == {one for one in BUILT_IN if get_format(one).traits.write}


def test_a_fault_is_one(driver: Driver) -> None:
    """A driver that took everything for tried would find nothing."""
    nothing = Case("info", "nothing", "read", "info IN/nothing.pbin --json")
    assert driver.verdict(Cell(nothing, "s3")).startswith("failed: not even on a disk")
    written = Done(0, "", "", {"x.pbin": b"1"})
    assert difference(CASES[0], written, written) is None
    for files in ({}, {"x.pbin": b"2"}, {"x.pbin": b"1", "y": b""}):
        assert difference(CASES[0], written, Done(0, "", "", files))
    for status, said, files in ((1, "penstock: a: b", {}), (10, "Traceback", {}), (10, "penstock: a: b", {"x": b""})):
        assert refusal(Done(status, "", said, files)).startswith("failed: ")
    assert refusal(Done(10, "", "penstock: a: b", {})) == "refused: b"
