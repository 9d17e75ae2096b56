"""A WebDataset obeys the laws of all formats."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st

from penstock.abc import Store
from penstock.testing.datasets import copy_of, flip, refusal, some_offsets
from penstock.testing.formats import FormatSuite
from penstock.types import Sample, SourceInfo

MAXCOUNT = 3


def as_samples(rows: Sequence[Mapping[str, bytes]], name: str = "s") -> list[Sample]:
    """Samples as they are read: the parts, and what tells where they come from."""
    found: list[Sample] = []
    for index, parts in enumerate(rows):
        key = f"{name}/{index:06d}"
        info = SourceInfo("", index, f"shard_{index // MAXCOUNT:06d}.tar", tuple(f"{key}.{part}" for part in parts))
        told: Sample = {"__key__": key, "__restore_key__": ("Webdataset", index), "__sources__": (info,)}
        found.append({**told, **parts, "__subflavors__": {}})
    return found


PARTS = st.dictionaries(
    st.sampled_from(["bin", "dat", "a.b", "", "ü"]), st.binary(max_size=600), min_size=1, max_size=4
)


class TestWebdataset(FormatSuite):
    format = "webdataset"
    options: ClassVar = {"maxcount": MAXCOUNT}
    samples = st.lists(PARTS, max_size=8).map(as_samples)
    example: ClassVar = as_samples(
        [{"bin": b"one", "dat": b""}, {"bin": b"x" * 512}, {"a.b": b"\0\xff" * 300}, {"bin": b"4", "dat": b"y" * 700}]
    )
    other: ClassVar = as_samples([{"bin": b"old"}, {"bin": b"older"}], "o")

    test_sniff_reads_little = None  # it reads nothing: see test_sniff
    test_fingerprint_is_of_the_content = None  # of the shards and lists: see below

    def write(
        self,
        path: Path,
        samples: Sequence[Sample],
        *,
        overwrite: bool = False,
        store: Store | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().write(path, samples, overwrite=overwrite, store=store, options=options)

    def test_fingerprint_is_of_shards_and_lists(self, dataset: Path, tmp_path: Path) -> None:
        fingerprint = self.open(dataset).fingerprint
        copied = copy_of(dataset.parent, tmp_path / "elsewhere" / "deep") / dataset.name
        assert self.open(copied).fingerprint == fingerprint
        for name in ("shard_000000.tar", "shard_000001.tar", ".nv-meta/.info.json"):
            file = copied / name
            whole = file.read_bytes()
            told = whole.find(b'"shard_counts"')  # what tool wrote the list is no part of the data
            for offset_bytes in filter(lambda offset, told=told: offset >= told, some_offsets(len(whole), 12)):
                flip(file, offset_bytes)
                found: list[str] = []
                error = refusal(lambda found=found: found.append(self.open(copied).fingerprint))
                assert error is not None or found != [fingerprint], f"{name} at {offset_bytes}"
                file.write_bytes(whole)
        for name in ("index.sqlite", "index.uuid"):
            (copied / ".nv-meta" / name).unlink()
        (copied / ".penstock").unlink()
        assert self.open(copied).fingerprint == fingerprint
        shutil.rmtree(copied)
