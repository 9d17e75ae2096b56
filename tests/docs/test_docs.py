"""The blocks of the documentation run as they are written, page by page, in order.

```python, ```sh and ```console blocks run; a comment `<!-- not run: reason -->` on the line before a block leaves it
out. Every page begins in a folder of its own with two files that its blocks may use: `corpus.jsonl`, some hundred
documents with a field `text`, and `tokenizer.json`, a byte-level BPE with `<|endoftext|>`. The Python blocks of a page
share their names. In a console block the lines after a `$ command` are its output, where `...` stands for anything.
"""

from __future__ import annotations

import doctest
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.preloaded import served
from tokenizers import ByteLevelBPETokenizer

import penstock

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "concepts.md",
    ROOT / "docs" / "formats" / "energon.md",
    *sorted((ROOT / "docs" / "guide").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorial").glob("*.md")),
]
RUN = {"python", "sh", "console"}
COMMANDS = re.compile(r"penstock\.(check|cli|codec|convert|executors|formats|mix|prepare|recipe|reshape|store|work)\.")
"""Modules that the commands of the pages import."""
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.M | re.S)
LEFT_OUT = re.compile(r"<!-- not run: \S.* -->\n\Z")
TIMEOUT_S = 300


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the line of the page on which its text begins."""

    language: str
    text: str
    line: int


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page that run."""
    return [
        Block(found[1], found[2], page.count("\n", 0, found.start(2)) + 1)
        for found in FENCE.finditer(page)
        if found[1] in RUN and not LEFT_OUT.search(page[: found.start()])
    ]


INSTALLED = Path(sys.executable).parent
"""The folder of the command line as users start it."""


def run_shell(script: str, folder: Path, programs: Path = INSTALLED) -> str:
    """Output of a script, its errors included; a failing command ends it. `programs` is the front of its PATH."""
    path = os.pathsep.join([str(programs), str(INSTALLED), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{script}\n→ exit status {done.returncode}\n{done.stdout}"
    return done.stdout


def run_console(text: str, folder: Path, programs: Path = INSTALLED) -> None:
    """Commands after `$ `, each with the output that must follow, if any is given."""
    head, *parts = re.split(r"^\$ ", text, flags=re.M)
    assert not head.strip(), "a console block begins with a command"
    for part in parts:
        command, _, expected = part.partition("\n")
        found = run_shell(command, folder, programs)
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        fits = not expected.strip() or doctest.OutputChecker().check_output(expected.strip(), found.strip(), flags)
        assert fits, f"$ {command}\n{found}\n→ expected:\n{expected}"


def run_page(page: Path, folder: Path, programs: Path = INSTALLED) -> int:
    """Run all blocks of a page in `folder`, in order; returns how many."""
    names: dict[str, Any] = {"__name__": "__page__"}
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    for block in blocks:
        if block.language == "python":
            # Line numbers of an error are those of the page.
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)
        elif block.language == "sh":
            run_shell(block.text, folder, programs)
        else:
            run_console(block.text, folder, programs)
    return len(blocks)


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files that every page begins with."""
    texts = [
        text
        for path in sorted(Path(os.__file__).parent.glob("*.py"))[:60]
        for text in path.read_text(encoding="utf-8").split("\n\n\n")
        if text.strip()
    ]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts[:200], vocab_size=512, special_tokens=["<|endoftext|>"], show_progress=False)
    saved = tmp_path_factory.mktemp("inputs") / "tokenizer.json"
    tokenizer.save(str(saved))
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    return {"corpus.jsonl": "".join(lines).encode(), "tokenizer.json": saved.read_bytes()}


@pytest.fixture(scope="session")
def preloaded(inputs: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Commands that run in forks of one interpreter: the pages start 120, and each would take a second to import."""
    ours = [one.name for one in pkgutil.walk_packages(penstock.__path__, "penstock.") if COMMANDS.match(one.name)]
    with served(tmp_path_factory.mktemp("programs"), [*ours, "gigatoken", "pyarrow.parquet", "tokenizers"]) as programs:
        yield programs


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page(
    page: Path,
    inputs: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    programs = INSTALLED if page.name == "README.md" else request.getfixturevalue("preloaded")
    for name, data in inputs.items():
        (tmp_path / name).write_bytes(data)
    monkeypatch.chdir(tmp_path)
    assert run_page(page, tmp_path, programs) > 0


def test_blocks() -> None:
    page = (
        "# A\n\n```sh\ntrue\n```\n\n```text\nno\n```\n\n"
        "<!-- not run: why -->\n```sh\nfalse\n```\n\n```python title=x\na = 1\n\nb\n```\n"
    )
    assert blocks_of(page) == [Block("sh", "true\n", 4), Block("python", "a = 1\n\nb\n", 17)]
    assert len(blocks_of("<!-- not run: -->\n```sh\nfalse\n```\n")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "```python\nraise ValueError\n```\n",
        "```sh\nfalse\ntrue\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
        "```console\n$ exit 3\n```\n",
        "```python\na = 1\n```\n```python\nassert a == 2\n```\n",
    ],
)
def test_page_that_is_wrong(text: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text)
    with pytest.raises((AssertionError, ValueError)):
        run_page(tmp_path / "page.md", tmp_path)


def test_page_that_is_right(tmp_path: Path) -> None:
    text = (
        "```sh\necho made > a\n```\n```console\n$ cat a\nmade\n$ echo one; echo 2 34\none\n2 ...\n```\n"
        "```python\na = 1\n```\n"
    )
    (tmp_path / "page.md").write_text(text + "```python\nassert a == 1\n```\n")
    assert run_page(tmp_path / "page.md", tmp_path) == 4


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target):
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
