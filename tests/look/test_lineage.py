"""`exclude --also`: from a sample to what was made of it, over each verb and several steps, by maps and by order."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.internals import NO_LIST, build_index, excluded_samples, waiting_files

import penstock as ps
from penstock.errors import ConfigError

TOKENIZER = Path(__file__).parent.parent / "golden" / "modalities" / "tokenizers" / "bpe2"
OUTPUTS = {"c.pbin": {}, "c.idx": {}, "c.zarr": {}, "files/": {"file_tokens": 60}}


def write(path: Path, count: int = 12, blank: bool = False) -> Path:
    """Lines whose texts tell their number; some empty, and some blank in between."""
    lines = [json.dumps({"id": n, "text": "x" * (n + 1) if n % 5 else ""}) + "\n" for n in range(count)]
    path.write_text("".join(line + ("\n" if blank and n % 3 == 0 else "") for n, line in enumerate(lines)))
    return path


def pack(source: Path, output: str, **options: Any) -> None:
    how: dict[str, Any] = {"tokenizer": TOKENIZER, "executor": "inline", "on_error": "skip", "task_bytes": 100}
    ps.pack([source], output, **how, **options)


def lengths_of(path: Any) -> list[int]:
    """Lengths of what is excluded there."""
    source: Any = ps.open(path, excludes=NO_LIST)
    found = [source[one.index] for one in excluded_samples(path).entries]
    return [len(one["tokens"]) if "tokens" in one else one["id"] for one in found]


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("blank", [False, True])
def test_by_the_map_of_pack(tmp_path: Path, name: str, blank: bool) -> None:
    path, output = write(tmp_path / "a.jsonl", blank=blank), str(tmp_path) + "/" + name
    if blank:
        build_index(path, on_error="skip")
    pack(path, output, keep_map=True, **OUTPUTS[name])
    whole: Any = ps.open(output)
    expected = [len(one["tokens"]) for one in whole]
    report = ps.exclude(path, key=["4", "7", "10"], reason="r", also=[output])
    assert [one.added for one in report.also] == [2], "the text of 10 is empty"
    kept = [n for n in range(12) if n % 5]
    assert lengths_of(output) == [expected[kept.index(4)], expected[kept.index(7)]]


def test_what_was_packed_of_a_folder_is_known_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The other files of the folder were looked for beside it, and said to be gone."""
    (tmp_path / "in").mkdir()
    for name, count in (("a", 12), ("b", 13)):
        write(tmp_path / "in" / f"{name}.jsonl", count)
    pack(tmp_path / "in", str(tmp_path / "c.pbin"), keep_map=True)
    report = ps.exclude(tmp_path / "in", indices=[16], reason="r", also=[tmp_path / "c.pbin"])
    assert [one.added for one in report.also] == [1]
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "other"}\n')
    ps.exclude(tmp_path / "in", indices=[2], reason="r", also=[tmp_path / "c.pbin"])
    assert "which may also contain these samples: a.jsonl" in caplog.text


@pytest.mark.parametrize("name", OUTPUTS)
def test_pack_keeps_excluded_lines_and_their_entries(tmp_path: Path, name: str) -> None:
    path, output = write(tmp_path / "a.jsonl", blank=True), str(tmp_path) + "/" + name
    build_index(path, on_error="skip")
    ps.exclude(path, key=["4", "7", "10"], reason="asked for")
    pack(path, output, keep_excluded=True, **OUTPUTS[name])
    entries, kept = excluded_samples(output).entries, [n for n in range(12) if n % 5]
    assert [(one.index, one.key, one.reason) for one in entries] == [
        (kept.index(4), "4", "asked for"),
        (kept.index(7), "7", "asked for"),
    ]
    assert ps.open(output).excluded_indices.tolist() == [one.index for one in entries]
    assert not waiting_files(tmp_path)


def test_over_several_steps(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    write(tmp_path / "b.jsonl", 3)
    ps.merge([tmp_path / "b.jsonl", tmp_path / "a.jsonl"], tmp_path / "all.jsonl")
    ps.filter(tmp_path / "all.jsonl", tmp_path / "some.jsonl", where="id != 2", keep_map=True)
    ps.shuffle(tmp_path / "some.jsonl", tmp_path / "mixed.jsonl", seed=3, keep_map=True)
    ps.convert(tmp_path / "mixed.jsonl", tmp_path / "mds", to="mds")
    pack(tmp_path / "mixed.jsonl", str(tmp_path / "c.pbin"), keep_map=True)
    ps.shuffle(tmp_path / "c.pbin", tmp_path / "s.pbin", seed=1, keep_map=True)
    ps.convert(tmp_path / "s.pbin", tmp_path / "s.idx")
    (tmp_path / "a.jsonl").rename(tmp_path / "renamed.jsonl")
    (tmp_path / "a.jsonl").write_text("other\n")
    made = [tmp_path / name for name in ("some.jsonl", "mixed.jsonl", "mds", "c.pbin", "s.pbin", "s.idx")]
    report = ps.exclude(tmp_path / "renamed.jsonl", key="8", reason="r", also=made)
    assert [one.added for one in report.also] == [1] * len(made), report
    assert [lengths_of(path) for path in made] == [[8]] * 3 + [lengths_of(made[3])] * 3
    one: Any = ps.open(made[3], excludes=NO_LIST)
    by_length = sorted(len(document["tokens"]) for document in one)
    assert lengths_of(made[3])[0] in by_length


def test_of_a_folder_that_was_read_as_one(tmp_path: Path) -> None:
    """The whole is the input of some, each file of others; what is joined from both has them all."""
    (tmp_path / "raw").mkdir()
    for name, count in (("a", 6), ("b", 7), ("c", 8), ("d", 8)):
        write(tmp_path / f"raw/{name}.jsonl", count)
    ps.filter(tmp_path / "raw", tmp_path / "f.jsonl", where="id != 2", keep_map=True)
    ps.shuffle(tmp_path / "f.jsonl", tmp_path / "s.jsonl", seed=5, keep_map=True)
    pack(tmp_path / "s.jsonl", str(tmp_path / "s.pbin"), keep_map=True)
    pack(tmp_path / "raw", str(tmp_path / "r.pbin"), keep_map=True)
    ps.merge([tmp_path / "s.pbin", tmp_path / "r.pbin"], tmp_path / "m.pbin", keep_map=True)
    ps.convert(tmp_path / "m.pbin", tmp_path / "m.zarr")
    made = [tmp_path / name for name in ("f.jsonl", "s.jsonl", "s.pbin", "r.pbin", "m.pbin", "m.zarr")]
    report = ps.exclude(tmp_path / "raw", indices=[4, 14, 25], reason="r", also=made)
    assert [one.added for one in report.also] == [3, 3, 3, 5, 8, 8], "of files of one content each gives what any gives"
    assert [sorted(lengths_of(path)) for path in made[:2]] == [[1, 4, 4]] * 2
    assert sorted(lengths_of(made[4])) == sorted(lengths_of(made[2]) + lengths_of(made[3]))


def test_a_file_of_a_folder_that_was_read_as_one(tmp_path: Path) -> None:
    """Its lines are found where the folder is the input, also where another input of the same is the file itself."""
    (tmp_path / "raw").mkdir()
    write(tmp_path / "raw/a.jsonl", 6)
    text = write(tmp_path / "b.jsonl", 7).read_bytes()
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "raw/b.jsonl.gz").write_bytes(gzip.compress(text))
    ps.filter(tmp_path / "raw", tmp_path / "f.jsonl", where="id != 2", keep_map=True)
    ps.convert(tmp_path / "raw", tmp_path / "mds", to="mds")
    pack(tmp_path / "f.jsonl", str(tmp_path / "f.pbin"), keep_map=True)
    ps.merge([tmp_path / "f.jsonl", tmp_path / "raw/b.jsonl.gz"], tmp_path / "m.jsonl", keep_map=True)
    made = [tmp_path / name for name in ("f.jsonl", "mds", "f.pbin", "m.jsonl")]
    report = ps.exclude(tmp_path / "raw/b.jsonl.gz", key=["3", "4"], reason="r", also=made)
    assert [one.added for one in report.also] == [2, 2, 2, 4]
    assert [sorted(lengths_of(path)) for path in (made[0], made[1], made[3])] == [[3, 4], [3, 4], [3, 3, 4, 4]]


def test_what_is_not_known_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl")
    ps.shuffle(path, tmp_path / "mixed.jsonl", seed=3)
    ps.convert(tmp_path / "mixed.jsonl", tmp_path / "mds", to="mds")
    (tmp_path / "other.jsonl").write_text('{"text": "no key"}\n')
    with pytest.raises(ConfigError, match="unknown which"):
        ps.exclude(path, key="3", reason="r", also=[tmp_path / "other.jsonl"])
    assert not list(tmp_path.rglob("*exclude*"))
    report = ps.exclude(path, key="3", reason="r", also=[tmp_path / "mixed.jsonl", tmp_path / "mds"])
    assert [one.added for one in report.also] == [1, 1], "by their keys"
