"""Damaged files in a work directory: `--finish` names them, or what it makes is right, or `verify` finds the damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engine.test_inputs import SOURCES, command

Cli = Callable[..., tuple[int, str]]
CASES = [
    *((verb, format) for verb in ("merge", "shuffle", "split") for format in SOURCES),
    *(("filter", format) for format in SOURCES if format != "webdataset"),
    *(("convert", format) for format in SOURCES),
    ("tars", "jsonl"),
    ("folder", "webdataset"),
    ("files", "pbin"),
    ("flat", "megatron"),
]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def files_in(folder: Path) -> dict[str, bytes]:
    files = (one for one in folder.rglob("*") if one.is_file() and one.suffix != ".sqlite")
    return {str(one.relative_to(folder)): one.read_bytes() for one in files}


def run_of(verb: str, format: str, source: Path, out: Path) -> list[str]:
    more = {
        "tars": ["--to", "webdataset", "--group-rows", "20"],
        "folder": ["--to", "folder", "--group-rows", "20"],
        "files": ["--to", "megatron", "--file-tokens", "500"],
        "flat": ["--to", "flat-tokens"],
    }
    if verb in more:
        return ["convert", str(source), str(out / "made"), *more[verb]]
    return command(verb, format, source, out)


def outputs_of(verb: str, out: Path) -> list[Path]:
    if verb == "split":
        return [one for one in (out / "parts").rglob("*") if one.is_dir() and not one.name.startswith(".")]
    return [one for one in out.iterdir() if not one.name.startswith(".")]


@pytest.mark.parametrize(("verb", "format"), CASES)
def test_finish_commits_no_damaged_part(verb: str, format: str, tmp_path: Path, cli: Cli) -> None:
    source, _ = SOURCES[format](tmp_path)
    (tmp_path / "indices").write_text("".join(f"{index}\n" for index in range(0, 60, 2)))
    (out := tmp_path / "out").mkdir()
    run = run_of(verb, format, source, out)
    for _ in range(2):  # the second time the second wave is done
        status, said = cli(*run, "--part", "0/1")
        assert status == 0, said
    shutil.copytree(out, tmp_path / "kept")
    status, said = cli(*run, "--finish")
    assert status == 0, said
    expected = files_in(out)
    victims: dict[str, Path] = {}
    for path in sorted((tmp_path / "kept").rglob("*")):
        names = path.relative_to(tmp_path / "kept").parts
        if path.is_file() and path.stat().st_size > 40 and {"parts", "groups", "tars", "files"} & {*names}:
            victims.setdefault(f"{names[2:3]}{path.suffix}{path.name == 'table'}", path)
    assert victims or (verb, format) in (("merge", "pbin"), ("merge", "megatron"))  # which make no parts
    for victim in victims.values():
        for damage in (truncate, empty, flip):
            shutil.rmtree(out)
            shutil.copytree(tmp_path / "kept", out)
            damage(out / victim.relative_to(tmp_path / "kept"))
            status, said = cli(*run, "--finish")
            case = f"{damage.__name__} {victim.relative_to(tmp_path / 'kept')}: {status} {said}"
            assert status != 70, case
            if status == 0 and files_in(out) != expected:
                assert damage is flip, case
                assert any(cli("verify", str(one), "--depth", "full")[0] for one in outputs_of(verb, out)), case
