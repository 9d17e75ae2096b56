"""Pictures in terminals: what each protocol is sent is taken apart again, back to the pixels."""

from __future__ import annotations

import base64
import io
import json
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.internals import CELL_HEIGHT, CELL_WIDTH, cli, current, known_way, replace, way_in
from tests.internals import terminal_picture as picture

import penstock as ps

Image = pytest.importorskip("PIL.Image")
PATIENCE_S = 60.0
KITTY, ITERM, SIXEL = "\x1b_G", "\x1b]1337;File=", "\x1bP"


def image_of(width: int, height: int) -> Any:
    made = Image.new("RGB", (width, height))
    made.putdata([((x * 40) % 200, (y * 30) % 256, (x + y) % 4 * 60) for y in range(height) for x in range(width)])
    return made.quantize(64, dither=0).convert("RGB")


def file_of(image: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def from_kitty(text: str) -> Any:
    chunks = re.findall(r"\x1b_G([^;]*);([A-Za-z0-9+/=]*)\x1b\\", text)
    assert "".join(f"\x1b_G{keys};{data}\x1b\\" for keys, data in chunks) == text
    assert [dict(one.split("=") for one in keys.split(","))["m"] for keys, _ in chunks] == ["1"] * (len(chunks) - 1) + [
        "0"
    ]
    assert all(len(data) <= 4096 for _, data in chunks)
    keys = dict(one.split("=") for one in chunks[0][0].split(","))
    assert (keys["a"], keys["f"], keys["q"]) == ("T", "100", "2")
    return Image.open(io.BytesIO(base64.b64decode("".join(data for _, data in chunks))))


def from_iterm(text: str) -> Any:
    found = re.fullmatch(r"\x1b\]1337;File=inline=1;size=(\d+);width=\d+;height=\d+;[^:]*:([^\x07]*)\x07", text)
    assert found is not None
    data = base64.b64decode(found[2])
    assert len(data) == int(found[1])
    return Image.open(io.BytesIO(data))


def from_sixel(text: str) -> Any:
    head = re.match(r'\x1bP0;1q"1;1;(\d+);(\d+)', text)
    assert head is not None
    assert text.endswith("\x1b\\")
    made = Image.new("RGB", (int(head[1]), int(head[2])), (1, 2, 3))
    palette: dict[int, tuple[int, ...]] = {}
    x = y = colour = 0
    for one in re.finditer(r"#(\d+)(?:;2;(\d+);(\d+);(\d+))?|!(\d+)(.)|([$-])|([?-~])", text[head.end() : -2]):
        if one[1]:
            colour = int(one[1])
            if one[2]:
                palette[colour] = tuple(round(int(part) * 255 / 100) for part in one.group(2, 3, 4))
        elif one[7]:
            x, y = 0, y + 6 * (one[7] == "-")
        else:
            bits = ord(one[6] or one[8]) - 63
            count = int(one[5] or 1)
            for row in (row for row in range(6) if bits >> row & 1):
                made.paste(palette[colour], (x, y + row, x + count, y + row + 1))
            x += count
    return made


def worst(one: Any, other: Any) -> int:
    assert one.size == other.size
    pairs = zip(one.convert("RGB").tobytes(), other.tobytes(), strict=True)
    return max(abs(a - b) for a, b in pairs)


@pytest.mark.parametrize("size", [(1, 1), (37, 23), (160, 97), (5, 240)])
@pytest.mark.parametrize(
    ("way", "parse", "most"), [("kitty", from_kitty, 0), ("iterm", from_iterm, 0), ("sixel", from_sixel, 2)]
)
def test_each_protocol_gives_the_pixels_back(
    way: Any, parse: Callable[[str], Any], most: int, size: tuple[int, int]
) -> None:
    image = image_of(*size)
    [text] = picture(file_of(image), way, 80, 12)
    assert worst(parse(text), image) <= most


def test_half_blocks_give_the_pixels_back() -> None:
    image = image_of(20, 24)
    rows = picture(file_of(image), "blocks", 20, 12)
    assert len(rows) == 12
    cells = [re.findall(r"\x1b\[38;2;(\d+);(\d+);(\d+)m\x1b\[48;2;(\d+);(\d+);(\d+)m\u2580", row) for row in rows]
    made = [part for row in cells for half in (0, 3) for cell in row for part in cell[half : half + 3]]
    assert bytes(map(int, made)) == image.tobytes()


@pytest.mark.parametrize(("way", "parse"), [("kitty", from_kitty), ("iterm", from_iterm), ("sixel", from_sixel)])
def test_a_large_picture_is_made_small(way: Any, parse: Callable[[str], Any]) -> None:
    [text] = picture(file_of(image_of(900, 300)), way, 30, 6)
    made = parse(text)
    assert made.width <= 30 * CELL_WIDTH
    assert made.height <= 6 * CELL_HEIGHT
    assert abs(made.width / made.height - 3) < 0.1
    assert len(text) < 30 * CELL_WIDTH * 6 * CELL_HEIGHT * 8


@pytest.mark.parametrize(
    ("environ", "way"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"KITTY_WINDOW_ID": "1", "TERM": "xterm-256color"}, "kitty"),
        ({"TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM_PROGRAM": "iTerm.app"}, "iterm"),
        ({"TERM_PROGRAM": "WezTerm"}, "iterm"),
        ({"LC_TERMINAL": "iTerm2"}, "iterm"),
        ({"TMUX": "/tmp/tmux", "LC_TERMINAL": "iTerm2"}, "blocks"),
        ({"TERM": "screen.xterm-256color", "KITTY_WINDOW_ID": "1"}, "blocks"),
        ({"TERM": "xterm-256color"}, None),
        ({}, None),
    ],
)
def test_what_the_environment_says(environ: dict[str, str], way: str | None) -> None:
    assert known_way(environ) == way


@pytest.mark.parametrize(
    ("answer", "way"),
    [
        (b"\x1b_Gi=31;OK\x1b\\\x1b[?62;c", "kitty"),
        (b"\x1b[?62;4;22c", "sixel"),
        (b"\x1b[?64;1;14;22c", None),
        (b"\x1b[?4c", None),  # a class of terminals, and no feature
        (b"", None),
        (b"garbage \x1b[?", None),
    ],
)
def test_what_the_terminal_answers(answer: bytes, way: str | None) -> None:
    assert way_in(answer) == way


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    with ps.create(tmp_path / "tars", format="webdataset") as writer:
        for number in range(3):
            writer.write({"__key__": f"k{number}", "png": file_of(image_of(60, 40)), "txt": b"some words"})
    return tmp_path / "tars"


def run(*args: object) -> Any:
    return CliRunner().invoke(cli, list(map(str, args)))


@pytest.mark.parametrize("verb", [("energon", "preview"), ("head",)])
@pytest.mark.parametrize(
    ("way", "mark"), [("kitty", KITTY + "a=T"), ("iterm", ITERM), ("sixel", SIXEL), ("blocks", "\x1b[38;2;")]
)
def test_a_command_shows_them(tars: Path, verb: tuple[str, ...], way: str, mark: str) -> None:
    done = run(*verb, tars, "-n", 2, "--pictures", way)
    assert done.exit_code == 0, done.output
    if way != "blocks":
        assert done.output.count(mark) == 2
    assert mark in done.output
    for other in ("none", "auto", None):  # what is no terminal is sent none by itself
        plain = run(*verb, tars, "-n", 2, *(() if other is None else ("--pictures", other)))
        assert (plain.exit_code, "\x1b" in plain.output) == (0, False)
    refused = run(*verb, tars, "--json", "--pictures", way)
    assert (refused.exit_code, "--pictures" in refused.output) == (1 if "energon" in verb else 2, True)


def test_explain_shows_them(tars: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "run.json"
    recipe.write_text(json.dumps(ps.Shuffle(ps.open(tars), seed=1).recipe()))
    done = run("explain", recipe, "--step", 0, "--global-batch", 2, "--world", 1, "--show", "--pictures", "kitty")
    assert done.exit_code == 0, done.output
    assert done.output.count("\x1b_Ga=T") == 2
    refused = run("explain", recipe, "--step", 0, "--global-batch", 2, "--world", 1, "--pictures", "kitty")
    assert (refused.exit_code, "--show" in refused.output) == (2, True)


def test_a_terminal_is_asked(tars: Path) -> None:
    """In a terminal of our own, which knows sixel, and says so."""
    process, terminal = pty.fork()
    if not process:
        for name in ("TERM_PROGRAM", "LC_TERMINAL", "KITTY_WINDOW_ID", "TMUX", "NO_COLOR"):
            os.environ.pop(name, None)
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, "-m", "penstock", "head", str(tars), "-n", "1"])
    shown, end = b"", time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < end:
            if not select.select([terminal], [], [], 0.5)[0]:
                continue
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:
                break
            shown += data
            if b"\x1b[c" in data:
                os.write(terminal, b"\x1b[?62;4;22c")
    finally:
        os.close(terminal)
        if not os.waitpid(process, os.WNOHANG)[0]:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    assert shown.count(b"\x1b[c") == 1
    assert SIXEL.encode() in shown


def test_explain_has_one_sample_at_a_time(tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    chosen, read_out = current("explained_choice"), current("explained_pictures")

    def choose(*args: Any) -> Any:
        for one in chosen(*args):
            told.append("read")
            yield one

    def show(*args: Any, **more: Any) -> None:
        told.append("shown")
        read_out(*args, **more)

    replace(monkeypatch, "explained_choice", choose)
    replace(monkeypatch, "explained_pictures", show)
    recipe = tmp_path / "run.json"
    recipe.write_text(json.dumps(ps.Shuffle(ps.open(tars), seed=1).recipe()))
    assert run("explain", recipe, "--step", 0, "--global-batch", 3, "--world", 1, "--show").exit_code == 0
    assert told == ["read", "shown"] * 3
