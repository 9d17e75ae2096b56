"""Shards that don't end as tars do; what is lost is what `tarfile` finds only with `ignore_zeros`."""

from __future__ import annotations

import io
import logging
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.internals import prepare_webdataset

import penstock
from penstock import merge
from penstock.errors import Corrupt

LAYOUTS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def tar_of(layout: int, first: int = 0, size_bytes: int = 700) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=layout) as archive:
        for number in range(first, first + 6):
            info = tarfile.TarInfo(f"{'d' * 90}/{number:020}.txt" if number % 2 else f"k{number}.txt")
            info.size, info.mtime = size_bytes, 1.5 if layout == tarfile.PAX_FORMAT else 0
            archive.addfile(info, io.BytesIO(b"x" * size_bytes))
    return out.getvalue()


def members(data: bytes, *, ignore_zeros: bool = False) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data), ignore_zeros=ignore_zeros) as archive:
        return archive.getmembers()


def end_of(data: bytes) -> int:
    last = members(data)[-1]
    return last.offset_data + -(-last.size // 512) * 512


def hole(data: bytes, num_members: int = 1) -> bytes:
    """Zeros in place of the third member, and of others after it."""
    all_members = members(data)
    start, stop = all_members[2].offset, all_members[2 + num_members].offset
    return data[:start] + bytes(stop - start) + data[stop:]


CASES: dict[str, tuple[Callable[[bytes, int], bytes], str | None]] = {
    "whole": (lambda data, layout: data, None),
    "one zero block": (lambda data, layout: data[: end_of(data) + 512], None),
    "most padding": (lambda data, layout: data[: end_of(data)].ljust(end_of(data) + 11_264, b"\0"), None),
    "zeros": (lambda data, layout: data[: end_of(data)].ljust(end_of(data) + 11_265, b"\0"), "after-end"),
    "second half zeros": (lambda data, layout: hole(data * 4, 1)[: end_of(hole(data))] + bytes(20_000), "after-end"),
    "cat": (lambda data, layout: data + tar_of(layout, 10), "error"),
    "cat of three": (lambda data, layout: data + tar_of(layout, 10) + tar_of(layout, 20), "error"),
    "hole": (lambda data, layout: hole(data), "error"),
    "larger hole": (lambda data, layout: hole(data, 3), "error"),
    "hole in many": (lambda data, layout: hole(tar_of(layout, 0, 60_000)), "error"),
    "garbage": (lambda data, layout: data + b"garbage", "error"),
    "far garbage": (lambda data, layout: data + bytes(5 << 20) + b"\1" + bytes(100), "error"),
    "no mark": (lambda data, layout: data[: end_of(data)], "no-end"),
    "cut between members": (lambda data, layout: data[: members(data)[3].offset], "no-end"),
    "part of a mark": (lambda data, layout: data[: end_of(data) + 100], "no-end"),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(("change", "expected"), CASES.values(), ids=CASES)
def test_no_member_is_lost_without_a_message(
    change: Callable[[bytes, int], bytes],
    expected: str | None,
    layout: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(tar_of(layout))
    prepare_webdataset(tmp_path, split_ratio=(1, 0, 0))
    data = change(path.read_bytes(), layout)
    path.write_bytes(data)
    read, end = members(data), end_of(data)
    lost = len(members(data, ignore_zeros=True)) - len(read)
    assert not lost or expected == "error"
    rest = data[end:].lstrip(b"\0")
    assert bool(rest) == (expected == "error")

    findings = {one.code: one for one in penstock.verify(tmp_path, depth="full")}
    ends = {code: one for code, one in findings.items() if code in ("webdataset.after-end", "webdataset.no-end")}
    if expected == "error":
        with pytest.raises(Corrupt, match="data after the end-of-archive mark") as caught:
            prepare_webdataset(tmp_path, split_ratio=(1, 0, 0), overwrite=True)
        assert (str(caught.value.path), caught.value.offset_bytes) == (str(path), len(data) - len(rest))
        one = ends["webdataset.after-end"]
        assert (one.severity, one.path, one.offset_bytes) == ("error", str(path), len(data) - len(rest))
        return
    assert [(code, one.severity, one.path, one.offset_bytes) for code, one in ends.items()] == (
        [] if expected is None else [(f"webdataset.{expected}", "warning", str(path), end)]
    )
    with caplog.at_level(logging.WARNING):
        summary = prepare_webdataset(tmp_path, split_ratio=(1, 0, 0), overwrite=True)
    assert summary.num_samples == len(read)
    about = [line for line in (*summary.warnings, *caplog.messages) if "end-of-archive mark" in line]
    assert len(about) == (0 if expected is None else 2)
    assert all("s.tar" in line for line in about)


def test_many_shards_without_a_mark_are_one_warning(tmp_path: Path) -> None:
    for number in range(3):
        data = tar_of(tarfile.USTAR_FORMAT, number * 10)
        (tmp_path / f"s{number}.tar").write_bytes(data[: end_of(data)])
    (line,) = prepare_webdataset(tmp_path, split_ratio=(1, 0, 0)).warnings
    assert line == "no end-of-archive mark: the shard may be truncated: 3 shards, such as s0.tar"


def test_shards_that_were_never_prepared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = tmp_path / "set"
    source.mkdir()
    data = tar_of(tarfile.USTAR_FORMAT)
    (source / "s.tar").write_bytes(data + tar_of(tarfile.USTAR_FORMAT, 10))
    with pytest.raises(Corrupt, match="data after the end-of-archive mark"):
        merge([source], tmp_path / "out")
    (source / "s.tar").write_bytes(data[: end_of(data)])
    with caplog.at_level(logging.WARNING):
        merge([source], tmp_path / "out")
    assert any("s.tar: no end-of-archive mark" in line for line in caplog.messages)
    assert len(members((tmp_path / "out" / "shard_000000.tar").read_bytes())) == 6
