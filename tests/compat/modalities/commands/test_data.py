"""Modalities' commands on whole files: its bytes, and what it should have done where it loses data."""

from __future__ import annotations

import enum
import errno
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import calculate_hashed_seed, join_embedded_stream_data, load_config, read_file_list, replace
from tests.reshape.datasets import documents_in, files_in, lines_in, sound, write_tokens

import penstock as ps
from penstock.compat import modalities
from penstock.compat.modalities import (
    EmbeddedStreamData,
    create_raw_data_index,
    create_shuffled_dataset_chunk,
    create_shuffled_jsonl_dataset_chunk,
    merge_packed_data_files,
    shuffle_jsonl_data,
    shuffle_tokenized_data,
)
from penstock.errors import ConfigError, Corrupt, FormatError, NotFound

PARTS = [Path("parts/part0.pbin"), Path("parts/part1.pbin"), Path("parts/part2.pbin")]


def through_a_scratch_file(patch: pytest.MonkeyPatch, memory_bytes: int) -> None:
    replace(patch, "gathers_in_memory", lambda *_: False)
    replace(patch, "reorder_memory_bytes", memory_bytes)
    replace(patch, "reorder_least_memory_bytes", memory_bytes)


class TestIndex:
    @pytest.mark.parametrize("name", ["docs", "docs_no_final_newline", "docs_with_empty", "docs_bad_types"])
    def test_golden(self, workplace: Path, name: str) -> None:
        done = create_raw_data_index(Path(f"inputs/{name}.jsonl"))
        assert Path(f"inputs/{name}.idx").read_bytes() == Path(f"idx/{name}.idx").read_bytes()
        assert done.path == f"inputs/{name}.idx"
        assert not done.differences

    def test_only_the_last_suffix_goes_and_folders_are_made(self, workplace: Path) -> None:
        Path("inputs/a.b.jsonl").write_bytes(b"{}\n")
        create_raw_data_index(Path("inputs/a.b.jsonl"))
        create_raw_data_index(Path("inputs/a.b.jsonl"), Path("new/folder/x.idx"))
        assert Path("inputs/a.b.idx").read_bytes() == Path("new/folder/x.idx").read_bytes()

    def test_policies(self, workplace: Path) -> None:
        source, index = Path("inputs/docs.jsonl"), Path("idx/docs.idx")
        with pytest.raises(ConfigError, match="--file_existence_policy"):
            create_raw_data_index(source, index)
        before = index.stat().st_ino
        assert "exists and is kept" in create_raw_data_index(source, index, "skip").summary
        assert index.stat().st_ino == before
        create_raw_data_index(source, index, "override")
        assert index.stat().st_ino != before
        with pytest.raises(ConfigError, match=r"skip \| error \| override"):
            create_raw_data_index(source, index, "maybe")

    def test_skip_does_not_take_an_index_that_is_none(self, workplace: Path) -> None:
        Path("inputs/docs.idx").write_bytes(b"")
        with pytest.raises(FormatError, match="pickle"):
            create_raw_data_index(Path("inputs/docs.jsonl"), None, "skip")

    def test_override_keeps_the_old_one_where_the_new_one_fails(self, workplace: Path) -> None:
        Path("inputs/bad.jsonl").write_bytes(b"{}\nbad\n")
        Path("inputs/bad.idx").write_bytes(b"old")
        with pytest.raises(Corrupt, match="line 2"):
            create_raw_data_index(Path("inputs/bad.jsonl"), None, "override")
        assert Path("inputs/bad.idx").read_bytes() == b"old"

    def test_refusals(self, workplace: Path) -> None:
        with pytest.raises(ConfigError, match="different files"):
            create_raw_data_index(Path("inputs/docs.jsonl"), Path("inputs/docs.jsonl"), "override")
        with pytest.raises(NotFound):
            create_raw_data_index(Path("inputs/nothing.jsonl"))


class TestMerge:
    def test_data_are_theirs_and_the_index_is_right(self, workplace: Path, golden: Path) -> None:
        done = merge_packed_data_files(PARTS, Path("merged.pbin"))
        theirs = (golden / "modalities" / "pbin" / "merged.pbin").read_bytes()
        data_bytes = int.from_bytes(theirs[:8], "little")
        assert Path("merged.pbin").read_bytes()[: 12 + data_bytes] == theirs[: 12 + data_bytes]
        assert documents_in("merged.pbin") == [one for part in PARTS for one in documents_in(part)]
        assert "49 of its 69 documents" in done.differences[0]

    def test_one_file_is_no_different(self, workplace: Path) -> None:
        done = merge_packed_data_files(PARTS[:1], Path("merged.pbin"))
        assert Path("merged.pbin").read_bytes() == PARTS[0].read_bytes()
        assert not done.differences

    def test_a_target_that_exists_is_the_originals_error(self, workplace: Path) -> None:
        Path("merged.pbin").write_bytes(b"old")
        with pytest.raises(FileExistsError, match="the output exists"):
            merge_packed_data_files(PARTS, Path("merged.pbin"))
        assert Path("merged.pbin").read_bytes() == b"old"

    def test_open_files_are_joined(self, workplace: Path) -> None:
        merge_packed_data_files(PARTS, Path("merged.pbin"))
        join_embedded_stream_data([EmbeddedStreamData(part) for part in PARTS], Path("joined.pbin"))
        assert Path("joined.pbin").read_bytes() == Path("merged.pbin").read_bytes()

    def test_folders_are_searched_in_order(self, workplace: Path) -> None:
        Path("parts/a").mkdir()
        write_tokens(Path("parts/a/z.pbin"), [[1]])
        write_tokens(Path("parts/B.pbin"), [[2]])
        merge_packed_data_files([Path("parts"), PARTS[1]], Path("merged.pbin"))
        files = [Path("parts/B.pbin"), Path("parts/a/z.pbin"), *PARTS, PARTS[1]]
        assert documents_in("merged.pbin") == [one for part in files for one in documents_in(part)]

    def test_a_folder_that_cannot_be_searched(self, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        scandir = os.scandir

        def refused(path: str) -> Any:
            if os.path.basename(path) == "closed":
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return scandir(path)

        Path("parts/closed").mkdir()
        monkeypatch.setattr(os, "scandir", refused)
        with pytest.raises(PermissionError, match="Permission denied: 'parts/closed'"):
            merge_packed_data_files([Path("parts")], Path("merged.pbin"))

    def test_refusals(self, workplace: Path) -> None:
        Path("empty").mkdir()
        with pytest.raises(ConfigError, match="no packed file"):
            merge_packed_data_files([Path("empty")], Path("merged.pbin"))
        write_tokens(Path("wide.pbin"), [[1]], 4)
        with pytest.raises(ConfigError, match="different token widths"):
            merge_packed_data_files([PARTS[0], Path("wide.pbin")], Path("merged.pbin"))
        with pytest.raises(ConfigError, match="exists"):
            merge_packed_data_files(PARTS[:1], PARTS[1])
        assert not Path("merged.pbin").exists()


class TestShuffle:
    @pytest.mark.parametrize("batch_size", [1, 100])
    def test_golden_documents(self, workplace: Path, golden: Path, batch_size: int) -> None:
        source = golden / "modalities" / "pbin" / "docs.bpe2.pbin"
        shuffle_tokenized_data(source, Path("new/s.pbin"), batch_size, seed=42)
        expected = golden / "modalities" / "commands" / "packed" / "docs.bpe2.shuffled_seed42.pbin"
        assert Path("new/s.pbin").read_bytes() == expected.read_bytes()
        assert sound(Path("new/s.pbin"))

    def test_golden_lines(self, workplace: Path, golden: Path) -> None:
        done = shuffle_jsonl_data(Path("inputs/docs.jsonl"), Path("out/s.jsonl"), seed=42)
        expected = golden / "modalities" / "commands" / "out" / "docs.shuffled_seed42.jsonl"
        assert Path("out/s.jsonl").read_bytes() == expected.read_bytes()
        assert files_in(Path("out")) == {"s.jsonl"}
        assert not done.differences

    def test_no_line_is_glued_to_another(self, workplace: Path, golden: Path) -> None:
        source = Path("inputs/docs_no_final_newline.jsonl")
        done = shuffle_jsonl_data(source, Path("out/s.jsonl"), seed=42)
        theirs = golden / "modalities" / "commands" / "out" / "docs_no_final_newline.shuffled_seed42.jsonl"
        lines = source.read_bytes().split(b"\n")
        random.Random(42).shuffle(lines)
        assert lines_in("out/s.jsonl") == lines
        assert len(theirs.read_bytes().split(b"\n")) == len(lines)  # one line end fewer: two are glued
        assert "one was added" in done.differences[0]

    def test_lines_are_not_looked_at(self, workplace: Path) -> None:
        lines = [b"{bad", b"", b"\xff\r", b"1"]
        Path("a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        shuffle_jsonl_data(Path("a.jsonl"), Path("b.jsonl"), seed=1)
        random.Random(1).shuffle(lines)
        assert lines_in("b.jsonl") == lines
        assert not Path("a.idx").exists()

    @pytest.mark.parametrize("seed", [0, -7, 1 << 40])
    def test_any_size_and_seed_as_python(self, workplace: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        through_a_scratch_file(monkeypatch, 1000)
        documents = [[n] * (n % 7) for n in range(500)]
        write_tokens(Path("a.pbin"), documents)
        shuffle_tokenized_data(Path("a.pbin"), Path("b.pbin"), seed=seed)
        random.Random(seed).shuffle(documents)
        assert documents_in("b.pbin") == documents

    def test_empty_files(self, workplace: Path) -> None:
        write_tokens(Path("a.pbin"), [])
        shuffle_tokenized_data(Path("a.pbin"), Path("b.pbin"), seed=1)
        assert Path("b.pbin").read_bytes() == Path("a.pbin").read_bytes()
        Path("a.jsonl").write_bytes(b"")
        shuffle_jsonl_data(Path("a.jsonl"), Path("b.jsonl"), seed=1)
        assert Path("b.jsonl").read_bytes() == b""

    def test_without_a_seed_it_is_told(self, workplace: Path) -> None:
        done = shuffle_tokenized_data(PARTS[0], Path("a.pbin"))
        seed = int(done.summary.split("seed ")[1].split()[0])
        shuffle_tokenized_data(PARTS[0], Path("b.pbin"), seed=seed)
        assert Path("a.pbin").read_bytes() == Path("b.pbin").read_bytes()

    def test_refusals(self, workplace: Path) -> None:
        with pytest.raises(ConfigError, match="different files"):
            shuffle_tokenized_data(PARTS[0], Path("parts/../parts/part0.pbin"), file_existence_policy="override")
        with pytest.raises(ConfigError, match="batch size"):
            shuffle_tokenized_data(PARTS[0], Path("a.pbin"), 0)
        with pytest.raises(ConfigError, match="exists"):
            shuffle_tokenized_data(PARTS[0], PARTS[1])
        with pytest.raises(NotFound):
            shuffle_jsonl_data(Path("nothing.jsonl"), Path("a.jsonl"))

    def test_policies(self, workplace: Path) -> None:
        shuffle_tokenized_data(PARTS[0], Path("a.pbin"), seed=1)
        first = Path("a.pbin").read_bytes()
        shuffle_tokenized_data(PARTS[0], Path("a.pbin"), file_existence_policy="skip", seed=2)
        assert Path("a.pbin").read_bytes() == first
        shuffle_tokenized_data(PARTS[0], Path("a.pbin"), file_existence_policy="override", seed=2)
        assert Path("a.pbin").read_bytes() != first
        shuffle_jsonl_data(Path("inputs/part0.jsonl"), Path("a.jsonl"), seed=1)
        shuffle_jsonl_data(Path("inputs/part1.jsonl"), Path("a.jsonl"), "skip", seed=1)
        assert len(lines_in("a.jsonl")) == 20
        shuffle_jsonl_data(Path("inputs/part1.jsonl"), Path("a.jsonl"), "override", seed=1)
        assert len(lines_in("a.jsonl")) == 23


class TestChunks:
    def test_golden_documents(self, workplace: Path, golden: Path) -> None:
        files = read_file_list(Path("configs/file_list.txt"), Path("parts"), ".pbin")
        assert files == PARTS
        create_shuffled_dataset_chunk(files, Path("new/c.pbin"), 0, 3, global_seed=7)
        expected = golden / "modalities" / "pbin" / "chunk_0_of_3_seed7.pbin"
        assert Path("new/c.pbin").read_bytes() == expected.read_bytes()

    def test_golden_lines(self, workplace: Path, golden: Path) -> None:
        files = read_file_list(Path("configs/file_list.txt"), Path("inputs"), ".jsonl")
        create_shuffled_jsonl_dataset_chunk(files, Path("new/c.jsonl"), 0, 3, global_seed=7)
        expected = golden / "modalities" / "commands" / "out" / "chunk_0_of_3_seed7.jsonl"
        assert Path("new/c.jsonl").read_bytes() == expected.read_bytes()

    def test_chunks_are_all_of_it(self, workplace: Path) -> None:
        found: list[list[int]] = []
        for k in range(3):
            create_shuffled_dataset_chunk(PARTS, Path(f"{k}.pbin"), k, 3, global_seed=1)
            found += documents_in(f"{k}.pbin")
        assert sorted(found) == sorted(one for part in PARTS for one in documents_in(part))

    def test_through_a_scratch_file(self, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        create_shuffled_dataset_chunk(PARTS, Path("a.pbin"), 1, 2, global_seed=1)
        through_a_scratch_file(monkeypatch, 200)
        create_shuffled_dataset_chunk(PARTS, Path("b.pbin"), 1, 2, global_seed=1)
        assert Path("a.pbin").read_bytes() == Path("b.pbin").read_bytes()

    def test_no_line_is_glued_to_another(self, workplace: Path) -> None:
        source = Path("inputs/docs_no_final_newline.jsonl")
        files = [source, Path("inputs/part0.jsonl")]
        done = [create_shuffled_jsonl_dataset_chunk(files, Path(f"{k}.jsonl"), k, 2, global_seed=1) for k in range(2)]
        expected = sorted([*source.read_bytes().split(b"\n"), *lines_in(files[1])])
        assert sorted([*lines_in("0.jsonl"), *lines_in("1.jsonl")]) == expected
        assert not done[0].differences
        assert "docs_no_final_newline.jsonl" in done[1].differences[0]

    def test_seeds(self, golden: Path) -> None:
        expected = json.loads((golden / "modalities" / "commands" / "expected.json").read_text())["hashed_seed"]
        for parts, seed in expected.items():
            assert calculate_hashed_seed(json.loads(parts.replace("'", '"'))) == seed

    def test_file_lists(self, workplace: Path) -> None:
        Path("list.txt").write_bytes(b"a/x.tar.gz\r\n y.txt \nz")
        assert read_file_list(Path("list.txt"), Path("r"), ".pbin") == [
            Path("r/a/x.tar.pbin"), Path("r/y.pbin"), Path("r/z.pbin")
        ]  # fmt: skip
        Path("list.txt").write_bytes(b"a\n\nb\n")
        with pytest.raises(ConfigError, match="line 2"):
            read_file_list(Path("list.txt"), Path("r"), ".pbin")
        with pytest.raises(NotFound):
            read_file_list(Path("nothing.txt"), Path("r"), ".pbin")

    def test_refusals(self, workplace: Path) -> None:
        with pytest.raises(ConfigError, match="the chunk number is out of range"):
            create_shuffled_dataset_chunk(PARTS, Path("c.pbin"), 3, 3)
        with pytest.raises(ConfigError, match="number of chunks"):
            create_shuffled_jsonl_dataset_chunk(PARTS, Path("c.pbin"), 0, 0)
        with pytest.raises(ConfigError, match="chunk 40 of 50 is empty"):
            create_shuffled_dataset_chunk(PARTS, Path("c.pbin"), 40, 50)
        with pytest.raises(ConfigError, match="different files"):
            create_shuffled_dataset_chunk(PARTS, PARTS[1], 0, 3, "override")
        write_tokens(Path("wide.pbin"), [[1]], 4)
        with pytest.raises(ConfigError, match="different token widths"):
            create_shuffled_dataset_chunk([PARTS[0], Path("wide.pbin")], Path("c.pbin"), 0, 1)
        with pytest.raises(NotFound):
            create_shuffled_dataset_chunk([Path("nothing.pbin")], Path("c.pbin"), 0, 1)
        assert not os.path.exists("c.pbin")


def test_a_token_of_each_kind_of_file(workplace: Path) -> None:
    """What the commands make opens in Penstock with all that it knows."""
    merge_packed_data_files(PARTS, Path("m.pbin"))
    shuffle_tokenized_data(Path("m.pbin"), Path("s.pbin"), seed=1)
    source = ps.open("s.pbin")
    np.testing.assert_array_equal(np.sort(np.diff(source.doc_starts)), np.sort(np.diff(ps.open("m.pbin").doc_starts)))
    assert source.manifest.options["seed"] == 1


class Policy(enum.Enum):
    """As Modalities has it."""

    SKIP = "skip"
    ERROR = "error"
    OVERRIDE = "override"


@pytest.mark.parametrize("policies", [Policy, modalities.FileExistencePolicy])
def test_the_enum_of_policies_does_what_its_word_does(policies: Any, workplace: Path) -> None:
    lines = workplace / "lines.jsonl"
    lines.write_text("".join(f'{{"n": {number}}}\n' for number in range(9)))
    create_raw_data_index(Path("inputs/part0.jsonl"), Path("idx/part0.idx"))
    packing = load_config("configs/pack_part0.yaml")
    makers: dict[str, Callable[..., Any]] = {
        "a.idx": lambda out, policy: modalities.create_raw_data_index(lines, out, policy),
        "b.pbin": lambda out, policy: modalities.shuffle_tokenized_data(PARTS[0], out, 3, policy, 1),
        "c.jsonl": lambda out, policy: modalities.shuffle_jsonl_data(lines, out, policy, 1),
        "d.pbin": lambda out, policy: modalities.create_shuffled_dataset_chunk([PARTS[0]], out, 0, 2, policy, 1),
        "e.jsonl": lambda out, policy: modalities.create_shuffled_jsonl_dataset_chunk([lines], out, 0, 2, policy, 1),
        "f.pbin": lambda out, policy: modalities.create_filtered_tokenized_dataset(
            PARTS[0], lambda number: number < 2, out, policy
        ),
        "g.pbin": lambda out, policy: modalities.pack_encoded_data(
            {**packing, "settings": {**packing["settings"], "dst_path": str(out)}}, policy
        ),
    }
    for name, make in makers.items():
        out = workplace / name
        make(out, policies.ERROR)
        made = out.read_bytes()
        with pytest.raises(ConfigError, match="exists"):
            make(out, policies.ERROR)
        out.write_bytes(made[:-1])
        make(out, policies.OVERRIDE)
        assert out.read_bytes() == made, name
        make(out, policies.SKIP)
        with pytest.raises(ConfigError, match="unknown file existence policy"):
            make(out, "other")
