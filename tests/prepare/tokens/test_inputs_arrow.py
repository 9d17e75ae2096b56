"""What Hugging Face `datasets` saved as input: rows mean what lines of JSON mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pytest
from tests.internals import load_blocks, replace
from tests.prepare.conftest import TEXTS, expected_tokens, stored_tokens

from penstock.errors import ConfigError, Corrupt, Truncated
from penstock.prepare import PackReport

Pack = Callable[..., PackReport]


def write_arrow(path: Path, texts: list[str], rows: int = 40, *, stream: bool = True, **columns: Any) -> Path:
    table = pyarrow.table({"text": texts, **columns})
    make = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
    with make(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def save(folder: Path, texts: list[str], files: int = 2) -> Path:
    """As `save_to_disk` does; with a file of its own cache, which it does not list."""
    folder.mkdir(parents=True)
    names = [f"data-{n:05}-of-{files:05}.arrow" for n in range(files)]
    size = -(-len(texts) // files)
    for n, name in enumerate(names):
        write_arrow(folder / name, texts[n * size : (n + 1) * size])
    write_arrow(folder / "cache-0123.arrow", ["never"] * 3)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "f", "_indices_data_files": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("task_bytes", [1, 700, 1 << 20])
def test_a_task_is_a_range_of_record_batches(
    tmp_path: Path, made: Pack, bpe2: Path, task_bytes: int, stream: bool
) -> None:
    path = write_arrow(tmp_path / "a.arrow", TEXTS, stream=stream, id=list(range(150)), raw=[b"1"] * 150)
    report = made(path, task_bytes=max(task_bytes, path.stat().st_size // 100))
    assert stored_tokens(tmp_path / "out.pbin") == expected_tokens(bpe2, TEXTS)
    assert report.documents == 150
    assert (report.tasks == 1) == (path.stat().st_size <= max(task_bytes, path.stat().st_size // 100))


def test_a_saved_dataset_is_the_files_that_it_lists(tmp_path: Path, made: Pack, corpus: Path) -> None:
    made(save(tmp_path / "saved", TEXTS))
    made(corpus, tmp_path / "other.pbin")
    assert (tmp_path / "out.pbin").read_bytes() == (tmp_path / "other.pbin").read_bytes()
    made(tmp_path / "saved", tmp_path / "third.pbin", executor="processes", workers=2, task_bytes=200)
    assert (tmp_path / "third.pbin").read_bytes() == (tmp_path / "other.pbin").read_bytes()


def test_a_file_is_opened_once_a_task(tmp_path: Path, made: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the heads of all record batches were read again for each of them."""

    opened: list[int] = []
    real = load_blocks
    replace(monkeypatch, "load_table_blocks", lambda *given, **how: (opened.append(1), real(*given, **how))[1])
    counts = []
    for batches in (10, 100):
        opened.clear()
        path = write_arrow(tmp_path / f"{batches}.arrow", ["a text"] * batches, rows=1)
        made(path, tmp_path / f"{batches}.pbin", task_bytes=1 << 20)
        counts.append(len(opened))
    assert counts[0] == counts[1]


def test_splits_are_named(tmp_path: Path, made: Pack, bpe2: Path) -> None:
    for name in ("train", "test"):
        save(tmp_path / "both" / name, [f"{name} {n}" for n in range(5)])
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ConfigError, match=r"each split is a separate dataset: found train, test.*both/train"):
        made(tmp_path / "both")
    made(tmp_path / "both" / "test")
    assert stored_tokens(tmp_path / "out.pbin") == expected_tokens(bpe2, [f"test {n}" for n in range(5)])
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    made(tmp_path / "both", tmp_path / "only.pbin")
    assert stored_tokens(tmp_path / "only.pbin") == expected_tokens(bpe2, [f"train {n}" for n in range(5)])


def test_a_column_that_is_not_there_is_refused(tmp_path: Path, made: Pack) -> None:
    path = write_arrow(tmp_path / "a.arrow", ["a"], other=[1])
    with pytest.raises(ConfigError, match=r"no column 'body'.*text, other"):
        made(path, field="body")


def test_damage_is_refused(tmp_path: Path, made: Pack) -> None:
    path = write_arrow(tmp_path / "a.arrow", TEXTS)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises((Truncated, Corrupt), match=r"a\.arrow"):
        made(path)
    assert not (tmp_path / "out.pbin").exists()


def test_the_real_package_saved_it(golden: Path, tmp_path: Path, made: Pack) -> None:
    import penstock as ps

    path = golden / "hf"
    source = ps.open(path)
    with pytest.raises(ConfigError, match="each split is"):
        made(path)
    report = made(path / "train", on_error="skip")  # some texts are null there
    assert 0 < report.documents == sum(one["text"] is not None for one in source) < len(source)
