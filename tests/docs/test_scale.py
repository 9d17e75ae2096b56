"""`docs/scale.md`: what follows from constants of the code and from counts is computed again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import penstock as ps
from penstock.engine.plan import PIECE_BYTES
from penstock.prepare.tokens import inputs as input_files
from penstock.prepare.tokens.request import DEFAULT_FILE_TOKENS
from penstock.store import _objects, fingerprint
from penstock.store._remote_output import ONE_PUT_BYTES
from penstock.store._requests import RemoteOptions
from penstock.testing.memory import MemorySource

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
TEXT_BYTES, FILES, NODES, CORES, REQUEST_S, PAGE_S = 10**13, 10**4, 64, 32, 0.01, 0.1
TOKEN_BYTES = TEXT_BYTES / 4.4 * 2
TASKS = TEXT_BYTES / input_files._MOST_TASK_BYTES
PUTS = -(-input_files._MOST_TASK_BYTES / 4.4 * 2 // ONE_PUT_BYTES) + 2
LENGTHS_BYTES = 8 * input_files._MOST_TASK_BYTES / 4.4 / 500
HOSTS, SAMPLED = 2048, fingerprint._FILES * fingerprint._PLACES
SAMPLED_BYTES = SAMPLED * fingerprint._PLACE_BYTES
FIRST_SECOND = [host for host in range(HOSTS) if _objects.delay_s(host, HOSTS, RemoteOptions().spread_s) < 1]


def said(number: float, digits: int = 2) -> str:
    """A number as the page rounds it."""
    return f"{float(f'{number:.{digits}g}'):,.10g}"


FIGURES = {
    "tasks": f"| {said(TASKS, 3)} |",
    "files of a task": f"or {input_files._MOST_TASK_FILES:,} files",
    "plan": f"→ {said(FILES / input_files._AT_ONCE * REQUEST_S + 5 * FILES / 1000 * PAGE_S)} s, 1 MB",
    "a plan's pieces": f"in pieces of {PIECE_BYTES >> 20} MiB",
    "encoding": f"→ {said(19.8 * TEXT_BYTES / 1e9, 3)} core seconds: {said(19.8 * 1e4 / NODES / CORES)} s",
    "token files": f"| {said(TOKEN_BYTES / 2 / DEFAULT_FILE_TOKENS)} |",
    "assembly": f"64 GB/s: {said(2 * TOKEN_BYTES / 64e9)} s",
    "listing": f"{said(TASKS / 1000)} pages: {said(TASKS / 1000 * PAGE_S)} s",
    "driver": f"handle the {said(TASKS, 3)} tasks",
    "lengths of a part": f"about {said(LENGTHS_BYTES / 1000)} KB",
    "foreign fingerprints": f"{said(HOSTS * SAMPLED, 3)} requests and {HOSTS * SAMPLED_BYTES / 1e9:.1f} GB",
    "a foreign fingerprint": f"at most {SAMPLED} reads and {SAMPLED_BYTES >> 10} KiB",
    "turns": f"{len(FIRST_SECOND)} hosts per second",
    "requests of a part": f"{PUTS:.0f} for an upload in pieces of {ONE_PUT_BYTES >> 20} MiB",
    "listings of an array": f"64 jobs make {said(64 * 2 * 150)} requests",
}


@pytest.mark.parametrize("what", FIGURES)
def test_figures(what: str) -> None:
    assert FIGURES[what] in " ".join(PAGE.split()), FIGURES[what]


def test_state() -> None:
    world = 16_384
    stream = ps.Shuffle(MemorySource([{"n": n} for n in range(100_000)]), 1, mode="blocks", lanes=world, block_size=10)
    state = ps.Loader(stream, 4 * world, rank=5, world=world, start=world * 10**6, workers=0).state_dict()
    assert (
        f"| state | {len(json.dumps(state)) + 1} bytes" in PAGE or f"| state | {len(json.dumps(state))} bytes" in PAGE
    )
