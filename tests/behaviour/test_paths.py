"""What a path gives: its splits, what is left out of them, epochs, and the samples of several ranks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.compat import energon as en
from penstock.compat.energon.dataset_config import get_dataset_from_config
from penstock.testing import FileServer

TEXT = "sample_type: {__module__: megatron.energon, __class__: TextSample}\nfield_map: {text: txt}\n"
KEYS = [f"{number:04}" for number in range(30)]


def dataset(path: Path, first: int = 0) -> Path:
    """30 samples in 3 shards, of which the last one is validation data."""
    with ps.create(path, format="webdataset", maxcount=10) as writer:
        for number, key in enumerate(KEYS):
            writer.write({"__key__": key, "txt": f"text {first + number}"})
    shards = sorted(str(one.relative_to(path)) for one in path.rglob("*.tar"))
    meta = path / ".nv-meta"
    (meta / "split.yaml").write_text(json.dumps({"split_parts": {"train": shards[:2], "val": shards[2:]}}))
    (meta / "dataset.yaml").write_text(TEXT)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return dataset(tmp_path / "a")


def config(rank: int = 0, world: int = 1, workers: int = 0) -> en.WorkerConfig:
    return en.WorkerConfig(rank=rank, world_size=world, num_workers=workers)


def training(path: Any, batch_size: int | None = 5, at: Any = None, **more: Any) -> Any:
    options: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, **more}
    return en.get_train_dataset(path, worker_config=at or config(), batch_size=batch_size, **options)


def keys(loader: Any, batches: int) -> list[str]:
    return [key for batch in islice(loader, batches) for key in batch.__key__]


def test_splits_share_no_sample(path: Path) -> None:
    train = keys(en.get_loader(training(path)), 4)
    others = en.get_val_dataset(path, split_part="val", worker_config=config(), batch_size=5)
    assert sorted(train) == KEYS[:20]
    assert keys(en.get_loader(others), 9) == KEYS[20:]
    assert [one[1].split_part for one in en.get_val_datasets(path, worker_config=config(), batch_size=5)] == ["val"]


@pytest.mark.parametrize("verb", ["lint", "preview", "info"])
def test_commands_need_no_split_that_is_not_there(path: Path, verb: str, cli: Callable[..., tuple[int, str]]) -> None:
    status, said = cli("energon", verb, str(path))
    assert status == 0, said


def test_what_a_file_of_splits_leaves_out(path: Path) -> None:
    meta = path / ".nv-meta"
    parts = json.loads((meta / "split.yaml").read_text())
    first, second = parts["split_parts"]["train"]
    (meta / "fewer.yaml").write_text(json.dumps({**parts, "exclude": [second, f"{first}/0003", f"{first}/0005"]}))
    (meta / "by_file.yaml").write_text(TEXT + "split_config: fewer.yaml\n")
    kept = [key for key in KEYS[:10] if key not in ("0003", "0005")]
    by: Any
    for by in ({"dataset_config": "by_file.yaml"}, {"split_config": "fewer.yaml"}):
        read = en.get_val_dataset(path, split_part="train", worker_config=config(), batch_size=4, **by)
        assert keys(en.get_loader(read), 9) == kept
        assert len(read) == 2


def test_single_samples_where_no_batch_size_is_given(path: Path) -> None:
    train = list(islice(en.get_loader(training(path, batch_size=None)), 20))
    read = en.get_val_dataset(path, split_part="val", worker_config=config(workers=2), batch_size=None)
    assert all(type(one) is en.TextSample and one.text == f"text {int(one.__key__)}" for one in train)
    assert sorted(one.__key__ for one in train) == KEYS[:20]
    assert [one.__key__ for one in en.get_loader(read)] != []
    assert sorted(one.__key__ for one in en.get_loader(read)) == KEYS[20:]
    assert len(read) == 10


@pytest.mark.parametrize("workers", [0, 5])
def test_each_sample_comes_once_in_an_epoch(path: Path, workers: int) -> None:
    options: dict[str, Any] = {"split_part": "train", "training": True, "sample_type": en.TextSample}
    made = get_dataset_from_config(path, worker_config=config(workers=workers), **options)
    drawn = [one.text for one in islice(en.get_loader(made.build()), 20)]
    assert Counter(drawn) == Counter(f"text {number}" for number in range(20))


def test_samples_drawn_with_replacement(path: Path) -> None:
    drawn = Counter(keys(en.get_loader(training(path, shuffle_over_epochs_multiplier=-1)), 200))
    assert set(drawn) == set(KEYS[:20])
    assert max(drawn.values()) - min(drawn.values()) > 5


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_of_a_blend_draw_from_other_datasets(tmp_path: Path, path: Path, workers: int) -> None:
    dataset(tmp_path / "b", first=100)
    blend = tmp_path / "blend.yaml"
    members = [{"path": path.name, "weight": 1}, {"path": "b", "weight": 1}]
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    blend.write_text(json.dumps({**head, "splits": {"train": {"blend": members}}}))
    drawn: list[list[bool]] = []
    for rank in range(3):
        batches = en.get_loader(training(blend, 1, config(rank, 4, workers)))
        drawn.append([int(one.text[0].split()[1]) < 100 for one in islice(batches, 25)])
    assert len(set(map(tuple, drawn))) == 3
    assert all(5 <= sum(one) <= 20 for one in drawn)


@pytest.mark.parametrize("workers", [0, 3])
def test_a_state_saved_at_any_step_leads_to_the_next_sample(path: Path, workers: int) -> None:
    loader = en.get_savable_loader(training(path, 1, config(workers=workers)))
    states, drawn = [loader.save_state_rank()], list[str]()
    for batch in islice(loader, 12):
        drawn += batch.__key__
        states.append(loader.save_state_rank())
    for step, state in enumerate(states[:-1]):
        again = en.get_savable_loader(training(path, 1, config(workers=workers)))
        again.restore_state_rank(state)
        assert again.save_state_rank() == state
        assert next(iter(again)).__key__ == [drawn[step]]


def test_a_pool_fetches_for_many_threads_at_once(path: Path) -> None:
    store, pool = en.WebdatasetFileStore(path), en.FileStoreCachePool(num_workers=4)
    lazies = [pool.get_lazy(store, f"{key}.txt") for key in KEYS * 4]
    with ThreadPoolExecutor(8) as threads:
        values = list(threads.map(en.DirectLazy.get, lazies))
    pool.close()
    assert values == [f"text {number}".encode() for number in range(30)] * 4


def test_a_join_is_prepared_though_nobody_has_its_class(tmp_path: Path, path: Path) -> None:
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    joiner = {"__module__": "a_module_that_is_not_there", "__class__": "Sample"}
    join = {"join": [{"path": path.name}, {"path": path.name}], "joiner": joiner}
    (tmp_path / "join.yaml").write_text(json.dumps({**head, "splits": {"train": join}}))
    en.prepare_metadataset(tmp_path / "join.yaml")
    (tmp_path / "join.yaml").write_text(json.dumps({**head, "splits": {"train": {**join, "joiners": joiner}}}))
    with pytest.raises(ps.errors.PenstockError, match="joiners"):
        en.prepare_metadataset(tmp_path / "join.yaml")


@en.stateless
def part(sample: Any) -> Any:
    return {"__key__": sample["__key__"], "part": sample["txt"]}


class Parts(en.DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (en.Cooker(part),)


@pytest.mark.parametrize(("said", "kind"), [("decoder: null", bytes), ("auto_decode: false", bytes), ("", str)])
def test_a_dataset_yaml_may_leave_parts_as_bytes(path: Path, said: str, kind: type) -> None:
    head = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    (path / ".nv-meta" / "dataset.yaml").write_text(f"{head}{said}\n")
    assert type(next(iter(en.get_loader(training(path, None, task_encoder=Parts()))))["part"]) is kind


@pytest.mark.parametrize("said", ["shuffle_over_epochs: 3", "parallel_shard_iters: 2", "max_samples_per_sequence: 9"])
def test_what_a_dataset_yaml_says_for_nothing_is_logged(
    path: Path, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    training(path, shuffle_buffer_size=None)
    assert not caplog.messages
    (path / ".nv-meta" / "dataset.yaml").write_text(f"{TEXT}{said}\n")
    training(path)
    assert f"{said.replace(': ', '=')} has no effect" in caplog.text


class Cooks(en.DefaultTaskEncoder[Any, Any, Any, Any]):
    @staticmethod
    @en.stateless
    def cook(sample: Any) -> en.TextSample:
        return en.TextSample(**en.basic_sample_keys(sample), text=sample["json"]["text"])

    cookers = (en.Cooker(cook),)


def test_the_same_far_away(tmp_path: Path, path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(9)))
    ps.index(rows, flavor="energon")
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    members = [{"path": path.name, "repetitions": 2}, {"path": "rows.jsonl", "repetitions": 1}]
    (tmp_path / "mixed.yaml").write_text(json.dumps({**head, "splits": {"train": {"blend_epochized": members}}}))
    files = {str(one.relative_to(tmp_path)): one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
    with FileServer(files) as server:
        drawn: list[list[str]] = []
        for root in (str(tmp_path), server.url):
            batches = en.get_loader(training(f"{root}/mixed.yaml", 7, task_encoder=Cooks()))
            drawn.append([text for batch in islice(batches, 7) for text in batch.text])
    wanted = {f"text {number}": 2 for number in range(20)} | {f"row {number}": 1 for number in range(9)}
    assert Counter(drawn[0]) == Counter(drawn[1]) == wanted  # in another order: far away whole shards are read
