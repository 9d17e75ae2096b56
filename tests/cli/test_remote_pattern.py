"""Patterns of tars in a remote store."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

from tests.internals import place_of, put


def test_tars_of_a_pattern_are_named_alike_here_and_in_a_bucket(
    tmp_path: Path, s3_server: str, cli: Callable[..., tuple[int, str]]
) -> None:
    for name in ("a", "b", "c"):
        path = tmp_path / f"{name}.tar"
        with tarfile.open(path, "w") as tar:
            member = tarfile.TarInfo(f"{name}.txt")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
        place = place_of(f"s3://bucket/pattern/{name}.tar")
        put(place.store, place.path, path.read_bytes())
    messages: list[str] = []
    for folder in (str(tmp_path), "s3://bucket/pattern"):
        status, text = cli("info", f"{folder}/*.tar")
        assert (status, "o file matches" in text) == (7, False), text
        messages.append(re.sub(r"[abc]\.tar", "x.tar", text.replace(folder, "FOLDER")))
    assert "`penstock prepare FOLDER`" in messages[0]
    assert messages[0] == messages[1]
