"""Tries each cell of the table of URLs: a command, where its input lies, where its output goes.

A cell is `tried` where the command ends well, leaves the files that it leaves on a disk, and nothing on this machine;
`refused: why` where it ends in one line and nothing was written anywhere; anything else is a fault.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.internals import main as penstock
from tests.urls.cases import Case
from tests.urls.places import Local, Where

_NUMBERS = itertools.count()
_PAGE_S = 60
_SIDE = (".penstock", ".sqlite", ".exclude.jsonl", ".certificate.json", ".html")
"""Side files name their inputs, databases differ in pages, lists of what is excluded say when, and reports what reading
from afar costs: these are there or not, and verbs read them."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A command with its places, by their kinds; no `target` where it writes nothing, or beside its input."""

    case: Case
    source: str
    target: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """What a command did: its status, what it said, and the files that it made or changed."""

    status: int
    out: str
    said: str
    files: dict[str, bytes]


def cells_of(case: Case, kinds: tuple[str, ...]) -> list[Cell]:
    """The cells of a case with stores of these kinds."""
    stores = [kind for kind in kinds if kind != "http"]
    if case.kind != "copy":
        return [Cell(case, kind) for kind in kinds]
    found = [Cell(case, "local", kind) for kind in stores] + [Cell(case, kind, "local") for kind in kinds]
    return found + [Cell(case, kind, kind) for kind in stores]


class Driver:
    """Runs commands over inputs that lie in each of some places.

    Args:
        folder: for what is local; made.
        inputs: of the cases: relative path → bytes.
        places: by kind.
    """

    def __init__(self, folder: Path, inputs: dict[str, bytes], places: Mapping[str, Where]) -> None:
        self.inputs = inputs
        self._folder = folder
        self._here = folder / "here"
        self._here.mkdir(parents=True)
        self._places = {"local": Local(folder / "data"), **places}
        self._known: dict[str, Done] = {}
        for place in self._places.values():
            place.put("in", inputs)

    def verdict(self, cell: Cell) -> str:
        """`tried`, `refused: why`, or `failed: what`."""
        local = self._local(cell.case)
        if local.status != 0:
            return f"failed: not even on a disk: {local.said}"
        done = self._run(cell)
        if left := os.listdir(self._here):
            shutil.rmtree(self._here)
            self._here.mkdir()
            return f"failed: left {', '.join(left)} on this machine"
        if done.status != 0:
            return refusal(done)
        return difference(cell.case, local, done) or "tried"

    def _local(self, case: Case) -> Done:
        if case.name not in self._known:
            self._known[case.name] = self._run(Cell(case, "local", "local"))
        return self._known[case.name]

    def _run(self, cell: Cell) -> Done:
        number = next(_NUMBERS)
        source, into = self._places[cell.source], "in"
        if cell.case.kind == "inside":
            into = f"in{number}"
            source.put(into, self._beside(cell.case))
        out = self._places[cell.target or "local"]
        if out.kind == "local" and cell.case.kind == "copy":
            (self._folder / "data" / f"out{number}").mkdir(parents=True)
        line = re.sub(r"\bIN\b", source.url(into), cell.case.line).replace("OUT", out.url(f"out{number}"))
        status, text, said = self._call(shlex.split(line))
        for url, name in ((source.url(into), "IN"), (out.url(f"out{number}"), "OUT")):
            text, said = text.replace(url, name), said.replace(url, name)
        if cell.case.kind == "copy":
            files = out.files(f"out{number}")
        else:
            files = {path: data for path, data in source.files(into).items() if self.inputs.get(path) != data}
        return Done(status, text, said, files)

    def _beside(self, case: Case) -> dict[str, bytes]:
        """The input of a case, and what is called like it: a folder's own files, or those of a file's stem."""
        name = case.line.partition("IN/")[2].split()[0]
        start = name if any(path.startswith(f"{name}/") for path in self.inputs) else name.rpartition(".")[0]
        return {path: data for path, data in self.inputs.items() if path.startswith(start)}

    def _call(self, words: list[str]) -> tuple[int, str, str]:
        if words[0] == "view":
            return viewed(words, self._here)
        before, out, said = os.getcwd(), io.StringIO(), io.StringIO()
        os.chdir(self._here)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
                try:
                    penstock(words)
                except SystemExit as ended:
                    status = int(ended.code or 0)
        finally:
            os.chdir(before)
        return status, out.getvalue(), said.getvalue()


def viewed(words: list[str], here: Path) -> tuple[int, str, str]:
    """As of a command that ends: the viewer's first page is asked for, and whether it is well; then it is stopped."""
    command = [sys.executable, "-m", "penstock", *words]
    with subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as viewer:
        assert viewer.stdout is not None
        url = viewer.stdout.readline().strip()
        seen = ""
        if url:
            try:
                with urllib.request.urlopen(url, timeout=_PAGE_S) as answer:  # follows where the first page leads
                    seen = _faults_in(answer.read().decode())
            except OSError as error:
                seen = f"Traceback: {error}"
            viewer.send_signal(signal.SIGTERM)
        said = viewer.communicate(timeout=_PAGE_S)[1]
    return viewer.returncode or bool(seen), "", said + seen


def _faults_in(page: str) -> str:
    """What a page says is wrong."""
    found = re.search(r'<[^>]*class="[^"]*(?:fault|broken)[^"]*"[^>]*>([^<]*)', page)
    return f"Traceback: {found[0]}" if found else ""


def refusal(done: Done) -> str:
    """The verdict of a command that did not end well."""
    found = re.findall(r"^penstock: (.*)$", done.said, re.MULTILINE)
    if len(found) != 1 or done.status in (1, 2, 70, 130) or "Traceback" in done.said:
        return f"failed: status {done.status}: {done.said}"
    if done.files:
        return f"failed: refused, and left {', '.join(sorted(done.files))}: {found[0]}"
    return f"refused: {found[0].partition(': ')[2]}"


def difference(case: Case, local: Done, done: Done) -> str | None:
    """The verdict of one that left other files, or said other things, than on a disk."""
    if case.kind == "read" and done.files:  # on a disk a JSONL gets its index when it is opened
        return f"failed: wrote {', '.join(sorted(done.files))}"
    if case.kind != "read" and local.files.keys() != done.files.keys():
        gone, new = sorted(local.files.keys() - done.files.keys()), sorted(done.files.keys() - local.files.keys())
        return f"failed: missing {gone}, unexpected {new}"
    other = [name for name, data in done.files.items() if local.files[name] != data and not name.endswith(_SIDE)]
    if other:
        return f"failed: other bytes in {', '.join(other)}"
    if case.kind == "read" and "--json" in case.line and local.out != done.out:
        return f"failed: says {done.out!r} and not {local.out!r}"
    return None


def local_files(folder: Path) -> dict[str, bytes]:
    """Relative path → bytes of all files."""
    return Local(folder.parent).files(folder.name)


def chosen(cells: list[Cell], seed: str, share: int = 10) -> Iterator[Cell]:
    """One in `share` of the cells, by a seed."""
    from tests.internals import digest

    for cell in cells:
        if int(digest(seed, cell.case.name, cell.source, cell.target), 16) % share == 0:
            yield cell
