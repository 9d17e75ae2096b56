"""What `verify` finds in a folder of token files, and what `repair` mends."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.internals import TokenFileEntry, decode_manifest, encode_manifest, waiting_name, work_within, write_side_file
from tests.internals import decode_token_file_index as decode_index
from tests.internals import encode_token_file_index as encode_index

import penstock as ps
from penstock.errors import Corrupt, NotFound, PrepareError
from penstock.testing.datasets import files_in
from penstock.testing.token_files import write_token_files
from penstock.types import Depth, Finding

EOS = 7
FILES = [[[300, 2, EOS], [EOS]], [], [[5, 0, 1, 4, EOS]], [[1, EOS], [2, 3, EOS]]]
FORMATS = ("pbin", "megatron", "flat-tokens")


def made(tmp_path: Path, format: str = "pbin", **how: Any) -> Path:
    return write_token_files(tmp_path / "out", FILES, format, options={"eos_id": EOS}, **how)


def codes(folder: Path, depth: Depth = "quick", **options: Any) -> list[str]:
    return [one.code for one in ps.verify(folder, depth=depth, **options) if one.severity == "error"]


def errors(folder: Path, **options: Any) -> list[Finding]:
    return [one for one in ps.verify(folder, depth="quick", **options) if one.severity == "error"]


def listed(folder: Path) -> list[TokenFileEntry]:
    return list(decode_index((folder / "index.json").read_bytes(), "").files)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("joined", [True, False])
def test_a_sound_folder(tmp_path: Path, format: str, joined: bool) -> None:
    folder = made(tmp_path, format, joined=joined)
    for depth in ("quick", "sample", "full"):
        assert codes(folder, depth) == []
    (folder / ".penstock").unlink()
    assert codes(folder, "full") == []
    assert codes(folder / "index.json") == []


@pytest.mark.parametrize("format", FORMATS)
def test_a_missing_file_is_named(tmp_path: Path, format: str) -> None:
    folder = made(tmp_path, format)
    name = listed(folder)[2].path
    for path in folder.glob(name.rpartition(".")[0] + "*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (finding,) = errors(folder)
    assert (finding.code, finding.path, finding.found) == ("token-files.missing", str(folder / name), "no such file")
    assert finding.fix


@pytest.mark.parametrize("depth", ["quick", "full"])
def test_a_torn_file_is_named(tmp_path: Path, depth: Depth) -> None:
    folder = made(tmp_path)
    path = folder / listed(folder)[2].path
    os.truncate(path, path.stat().st_size - 9)
    findings = [one for one in ps.verify(folder, depth=depth) if one.severity == "error"]
    assert {one.path for one in findings} <= {str(path), f"{path}.penstock"}
    assert findings


def swap(folder: Path, first: int, second: int, *, sides: bool) -> None:
    names = [listed(folder)[number].path for number in (first, second)]
    pairs = [names, [f"{name}.penstock" for name in names]] if sides else [names]
    for one, other in pairs:
        data = [(folder / name).read_bytes() for name in (one, other)]
        (folder / one).write_bytes(data[1])
        (folder / other).write_bytes(data[0])


def test_swapped_files_are_named(tmp_path: Path) -> None:
    folder = made(tmp_path)
    swap(folder, 2, 3, sides=True)  # as many tokens, and their own side files
    assert codes(folder) == ["token-files.counts"] * 2
    other = write_token_files(tmp_path / "other", [FILES[3][::-1], FILES[3]], options={"eos_id": EOS})
    swap(other, 0, 1, sides=True)
    assert codes(other) == ["token-files.digest"] * 2


def test_a_swapped_file_without_side_files_is_found_by_reading(tmp_path: Path) -> None:
    folder = write_token_files(tmp_path / "other", [FILES[3][::-1], FILES[3]], options={"eos_id": EOS})
    for path in folder.glob("*.penstock"):
        path.unlink()
    swap(folder, 0, 1, sides=False)
    assert codes(folder) == []
    assert codes(folder, "full") == ["token-files.digest"] * 2


@pytest.mark.parametrize("joined", [True, False])
def test_a_changed_token_is_found_by_reading(tmp_path: Path, joined: bool) -> None:
    folder = made(tmp_path, joined=joined)
    name = listed(folder)[2].path
    (folder / f"{name}.penstock").unlink()
    data = bytearray((folder / name).read_bytes())
    data[12] ^= 1
    (folder / name).write_bytes(data)
    assert codes(folder) == []
    assert codes(folder, "full") == ["token-files.digest"]


def test_a_largest_id_that_is_not_in_the_file(tmp_path: Path) -> None:
    folder = made(tmp_path)
    files = listed(folder)
    files[2] = dataclasses.replace(files[2], max_token_id=EOS + 1)
    (folder / "index.json").write_bytes(encode_index("pbin", files))
    (folder / ".penstock").unlink()
    assert codes(folder) == []
    assert codes(folder, "full") == ["token-files.max-token-id"]


def test_an_index_of_other_counts(tmp_path: Path) -> None:
    folder = made(tmp_path)
    files = listed(folder)
    files[2] = dataclasses.replace(files[2], tokens=4)
    (folder / "index.json").write_bytes(encode_index("pbin", files))
    assert codes(folder) == ["token-files.changed", "token-files.counts"]


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version": 1, "format": "pbin", "files": [{"path": "../x"}]}'])
def test_a_damaged_index(tmp_path: Path, damage: bytes) -> None:
    folder = made(tmp_path)
    (folder / "index.json").write_bytes(damage)
    assert codes(folder) == ["token-files.index"]


def test_what_no_index_lists_is_a_warning(tmp_path: Path) -> None:
    folder = made(tmp_path)
    (folder / "part-00009-01234567.pbin").write_bytes(b"of a stale worker")
    work_within(folder).mkdir()
    (work_within(folder) / "plan").write_text("{}")
    findings = ps.verify(folder)
    assert {(one.code, one.severity) for one in findings} >= {
        ("token-files.unlisted", "warning"),
        ("token-files.work", "warning"),
    }
    assert codes(folder) == []


def test_a_vocabulary_that_is_too_small(tmp_path: Path) -> None:
    folder = made(tmp_path)
    assert codes(folder, vocab_size=301) == []
    (finding,) = errors(folder, vocab_size=300)
    assert (finding.code, finding.found) == ("token-files.token-range", "file 0 holds the id 300")
    assert "pbin.no-eos" in codes(folder, "sample", eos_id=3)


def test_files_of_different_runs(tmp_path: Path) -> None:
    folder = made(tmp_path, side=False)
    other = write_token_files(tmp_path / "wide", FILES, options={"token_bytes": 4, "tokenizer_digest": "x"})
    for path in other.glob("part-00002-*"):
        (folder / path.name).write_bytes(path.read_bytes())
    assert codes(folder) == ["token-files.width", "token-files.eos", "token-files.tokenizer"]


def test_unfinished_and_absent(tmp_path: Path) -> None:
    folder = made(tmp_path)
    (folder / "index.json").unlink()
    assert codes(folder) == ["token-files.unfinished"]
    with pytest.raises(NotFound):
        ps.verify(tmp_path / "no", format="token-files")


# --- repair ------------------------------------------------------------------------------------------------------


def lose(folder: Path) -> None:
    (folder / "index.json").unlink()


def tear(folder: Path) -> None:
    path = folder / "index.json"
    path.write_bytes(path.read_bytes()[:150])


@pytest.mark.parametrize("damage", [lose, tear])
@pytest.mark.parametrize("format", FORMATS)
def test_an_index_is_remade(tmp_path: Path, format: str, damage: Callable[[Path], None]) -> None:
    folder = made(tmp_path, format)
    before = (folder / "index.json").read_bytes()
    damage(folder)
    torn = (folder / "index.json").read_bytes() if damage is tear else None
    (action,) = ps.repair(folder)
    assert action.possible
    assert not action.done
    (action,) = ps.repair(folder, write=True)
    assert action.done
    assert (folder / "index.json").read_bytes() == before
    assert torn is None or (folder / "index.json.bak").read_bytes() == torn
    assert codes(folder, "full") == []


def test_an_index_of_a_folder_with_old_digests_is_remade(tmp_path: Path) -> None:
    folder = made(tmp_path, joined=False)
    before = (folder / "index.json").read_bytes()
    lose(folder)
    assert ps.repair(folder, write=True)[0].done
    assert (folder / "index.json").read_bytes() == before


@pytest.mark.parametrize("format", FORMATS)
def test_an_index_is_remade_by_reading_where_side_files_have_old_digests(tmp_path: Path, format: str) -> None:
    folder = made(tmp_path, format, recorded=False)
    assert codes(folder) == []
    before = (folder / "index.json").read_bytes()
    lose(folder)
    assert ps.repair(folder, write=True)[0].done
    assert (folder / "index.json").read_bytes() == before
    assert codes(folder, "full") == []


def last_goes(folder: Path) -> None:
    for path in folder.glob("part-00003-*"):
        path.unlink()


def middle_goes(folder: Path) -> None:
    for path in folder.glob("part-00001-*"):
        path.unlink()


def side_goes(folder: Path) -> None:
    for path in folder.glob("part-00001-*.penstock"):
        path.unlink()


def folder_side_goes(folder: Path) -> None:
    (folder / ".penstock").unlink()


def second_of_a_number(folder: Path) -> None:
    name = next(folder.glob("part-00001-*.pbin"))
    shutil.copy(name, folder / "part-00001-01234567.pbin")


def another_format(folder: Path) -> None:
    (folder / "part-00004-01234567.bin").write_bytes(b"")


def other_documents(folder: Path) -> None:
    names = [next(folder.glob(f"part-0000{number}-*.pbin")) for number in (2, 3)]
    for suffix in ("", ".penstock"):
        shutil.copy(f"{names[0]}{suffix}", f"{names[1]}{suffix}")


def work_goes_on(folder: Path) -> None:
    work_within(folder).mkdir()
    (work_within(folder) / "plan").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (last_goes, "the files don't match the side file of the folder"),
        (middle_goes, "a token file is missing: expected part-00001-"),
        (side_goes, "a token file has no matching side file"),
        (folder_side_goes, "the folder has no side file, so the number of files is unknown"),
        (second_of_a_number, "two files have the same number"),
        (another_format, "token files in several formats"),
        (other_documents, "a token file contains different documents"),
        (work_goes_on, "the folder contains unfinished work"),
    ],
)
def test_an_index_is_not_remade_where_it_could_be_another(
    tmp_path: Path, damage: Callable[[Path], None], why: str
) -> None:
    folder = made(tmp_path)
    lose(folder)
    damage(folder)
    before = files_in(folder)
    (action,) = ps.repair(folder, write=True)
    assert not action.possible
    assert why in action.what
    assert files_in(folder) == before
    with pytest.raises(PrepareError):
        ps.open(folder)


def test_token_files_are_not_changed(tmp_path: Path) -> None:
    folder = made(tmp_path)
    path = folder / listed(folder)[2].path
    os.truncate(path, path.stat().st_size - 9)
    before = files_in(folder)
    actions = ps.repair(folder, write=True)
    assert {(one.path.removesuffix(".penstock"), one.possible) for one in actions} == {(str(path), False)}
    assert files_in(folder) == before


def test_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    folder = made(tmp_path)
    side, waiting = folder / ".penstock", waiting_name(folder / ".penstock")
    manifest = decode_manifest(side.read_bytes())
    assert manifest is not None
    side.rename(waiting)
    side.write_bytes(encode_manifest(dataclasses.replace(manifest, num_tokens=1)))
    source: Any = ps.open(folder)
    assert source.manifest == manifest
    assert [one.done for one in ps.repair(folder, write=True)] == [True]
    assert decode_manifest(side.read_bytes()) == manifest
    assert not waiting.exists()
    assert codes(folder) == []


def test_a_repair_by_another_format_touches_nothing(tmp_path: Path) -> None:
    folder = made(tmp_path)
    before = files_in(folder)
    for format in ("mds", "csv", "json-shards"):
        assert not any(one.done for one in ps.repair(folder, write=True, format=format))
        assert ps.verify(folder, format=format)
    assert files_in(folder) == before


# --- the side file made anew -------------------------------------------------------------------------------------


def test_a_side_file_is_made_for_what_is_there(tmp_path: Path) -> None:
    folder = made(tmp_path)
    (folder / ".penstock").unlink()
    assert write_side_file(folder) == str(folder / ".penstock")
    source: Any = ps.open(folder)
    found = source.manifest
    assert (found.num_tokens, found.num_samples, found.eos_id, found.max_token_id) == (14, 5, EOS, 300)
    assert found.digest.startswith("2:")
    assert found.size_bytes == sum(path.stat().st_size for path in folder.glob("*.pbin"))
    assert codes(folder, "full") == []


def test_a_side_file_of_another_index_is_replaced_only_when_asked(tmp_path: Path) -> None:
    folder = made(tmp_path)
    files = listed(folder)[:3]
    (folder / "index.json").write_bytes(encode_index("pbin", files))
    assert codes(folder) == ["token-files.changed"]
    with pytest.raises(Corrupt, match="contradicts its side file"):
        write_side_file(folder)
    write_side_file(folder, replace=True)
    assert codes(folder, "full") == []
    source: Any = ps.open(folder)
    assert (source.manifest.num_tokens, source.eos_id) == (9, EOS)


def test_no_side_file_for_files_that_are_not_the_listed_ones(tmp_path: Path) -> None:
    folder = write_token_files(tmp_path / "other", [FILES[3][::-1], FILES[3]], options={"eos_id": EOS})
    for path in folder.glob("*.penstock"):
        path.unlink()
    swap(folder, 0, 1, sides=False)
    with pytest.raises(Corrupt, match=r"token-files\.digest"):
        write_side_file(folder)
    assert not (folder / ".penstock").exists()
