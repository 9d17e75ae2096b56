from __future__ import annotations

import hashlib
import json
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.codec.parts import DecodeOptions
from penstock.cook import Cooker, Crude, CrudeSample, FileStore, Lazy, Prefetch, SkipSample, cook
from penstock.errors import ConfigError, CookError, FormatError, NotFound
from penstock.testing import MemorySource
from penstock.types import ImageMetadata

GOLDEN = Path(__file__).parent.parent / "golden" / "energon-loading"
CASES = json.loads((GOLDEN / "expected.json").read_text())["cases"]
DATA = GOLDEN / "data"


def source(count: int = 30) -> Any:
    return MemorySource([{"__key__": f"k{i}", "id": i} for i in range(count)])


def noisy(sample: Any, rng: np.random.Generator) -> dict[str, Any]:
    return {"id": sample["id"], "noise": rng.random(), "__restore_key__": sample["__restore_key__"]}


def plain(sample: Any) -> dict[str, Any]:
    return {"id": sample["id"], "by": "plain"}


def other(sample: Any) -> dict[str, Any]:
    return {"id": sample["id"], "by": "other"}


def failing(sample: Any) -> dict[str, Any]:
    if sample["id"] == 7:
        raise KeyError("caption")
    return plain(sample)


def skipping(sample: Any) -> dict[str, Any]:
    if sample["id"] % 10 == 3:
        raise SkipSample
    return plain(sample)


def misspelled(sample: Any) -> dict[str, Any]:
    return sampel  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore


def opened(name: str, **options: Any) -> Any:
    return ps.open(str(DATA / name), **options)


# --- position, not worker ----------------------------------------------------------------------------------------


def test_a_sample_is_a_function_of_its_position() -> None:
    stream = cook(ps.Shuffle(source(), seed=1), noisy, seed=5)
    by_one = [stream[p] for p in range(90)]
    assert stream.get_batch(range(90))["noise"].tolist() == [one["noise"] for one in by_one]
    resolved = stream.resolve(np.arange(90))
    assert stream.get_resolved(resolved[50:70])["noise"].tolist() == [one["noise"] for one in by_one[50:70]]
    assert stream.get_resolved_samples(np.array([88, 3, 3])) == [by_one[88], by_one[3], by_one[3]]
    again = pickle.loads(pickle.dumps(stream))
    assert [again[p] for p in (5, 61)] == [by_one[5], by_one[61]]
    # Other noise in each epoch, and for every sample.
    assert len({one["noise"] for one in by_one}) == 90
    assert [one["noise"] for one in by_one] != [cook(stream.stream, noisy, seed=6)[p]["noise"] for p in range(90)]


@pytest.mark.parametrize(("workers", "kind"), [(0, "threads"), (1, "threads"), (4, "threads")])
def test_the_same_after_a_restore_at_every_step(workers: int, kind: Any) -> None:
    stream = cook(ps.Shuffle(source(), seed=1), noisy, seed=5)

    def loader() -> Any:
        return ps.Loader(stream, 4, rank=0, world=1, workers=workers, worker_kind=kind)

    first = loader()
    straight: list[list[float]] = []
    states = [json.dumps(first.state_dict())]
    for batch, _ in zip(first, range(20), strict=False):
        straight.append(batch["noise"].tolist())
        states.append(json.dumps(first.state_dict()))
    for k in range(0, 19, 3):
        again = loader()
        again.load_state_dict(json.loads(states[k]))
        assert [b["noise"].tolist() for b, _ in zip(again, range(2), strict=False)] == straight[k : k + 2]


def test_every_number_of_ranks_gives_the_same_samples() -> None:
    stream = cook(ps.Shuffle(source(), seed=1), noisy, seed=5)
    whole = stream.get_batch(range(12))["noise"].tolist()
    for world in (1, 2, 3):
        found = [0.0] * 12
        for rank in range(world):
            batch = next(iter(ps.Loader(stream, 12, rank=rank, world=world, workers=0)))
            found[rank::world] = batch["noise"].tolist()
        assert found == whole


def test_a_restore_key_makes_the_sample_again() -> None:
    stream = cook(ps.Shuffle(source(), seed=1), noisy)
    for position in (0, 44):
        sample = stream[position]
        assert sample["__restore_key__"] == ("cook", position)
        assert stream.restore(("Batch", 1, sample["__restore_key__"])) == sample
    cooked = cook(source(), noisy)
    assert cooked.restore(cooked[4]["__restore_key__"]) == cooked[4]
    with pytest.raises(ConfigError, match="restore key"):
        stream.restore(("Webdataset", "x"))


def test_samples_that_are_shared_stay_as_they_are() -> None:
    shared = source()
    cook(shared, noisy).get_samples(np.array([1, 1]))
    assert shared[1] == {"__key__": "k1", "id": 1}


# --- which function, with what -----------------------------------------------------------------------------------


def test_the_first_match_cooks() -> None:
    a = Crude(source(10), subflavors={"src": "a", "n": 1})
    b = Crude(source(11), subflavors={"src": "b"})
    blend = ps.Blend({"a": a, "b": b}, weights={"a": 1, "b": 1}, seed=2)
    stream = cook(blend, [Cooker(other, {"src": "b"}), Cooker(plain)])
    for position in range(20):
        assert stream[position]["by"] == ("other" if stream.locate(position).path == ("b",) else "plain")
    with pytest.raises(ConfigError, match=r"no cooker accepts.*other for \{'src': 'b'\}"):
        cook(a, Cooker(other, {"src": "b"}))[0]


def test_subflavors_of_the_dataset_win() -> None:
    inner = MemorySource([{"id": 1, "__subflavors__": {"src": "inner", "kept": True}}])
    sample = Crude(inner, subflavors={"src": "outer"})[0]
    assert isinstance(sample, CrudeSample)
    assert sample["__subflavors__"] == {"src": "outer", "kept": True}


def images(sample: Any, imgs: FileStore, media: FileStore) -> dict[str, Any]:
    row = sample["json"]
    got = {
        "imgs": hashlib.sha256(imgs.get(row["image"], sample)).hexdigest(),
        "media": hashlib.sha256(media.get(row["fs"], sample)).hexdigest(),
    }
    return {"key": sample["__key__"], "row": row, **got, "sources": sample["__sources__"]}


def test_auxiliary_stores_of_each_dataset_as_energon_gives_them() -> None:
    rows = opened("primary.jsonl", flavor="energon")
    crude = Crude(ps.WithAux(rows, imgs=opened("aux_img", raw=True), media=opened("fs_media", raw=True)))
    # The stores are those of the sample's dataset, however deep it is below.
    blend = ps.Blend({"a": ps.Shuffle(crude, 1), "b": ps.Shuffle(Crude(source()), 2)}, {"a": 1, "b": 1}, seed=1)
    stream = cook(blend, [Cooker(images)])
    found: dict[str, Any] = {}
    for position in range(40):
        if stream.locate(position).path == ("a",):
            sample = stream[position]
            found[sample["key"]] = sample
    assert len(found) == len(CASES["aux"]["rows"])
    for key, parts, sources in CASES["aux"]["rows"]:
        sample = found[key]
        assert sample["row"] == parts["row"]
        assert (sample["imgs"], sample["media"]) == (parts["imgs"]["sha256"], parts["media"]["sha256"])
        told = [
            [Path(one.dataset_path).name, str(one.index), one.shard_name, list(one.file_names)]
            for one in sample["sources"]
        ]
        assert told[2][2] == sample["sources"][2].dataset_path  # a folder has no shards
        told[2][2] = told[2][0]  # the case was made where the folder's whole path is its name
        assert told == sources


def wants_primary(sample: Any, primary: FileStore) -> dict[str, Any]:
    return {"own": primary.get(".txt"), "whole": primary.get("s000.txt"), "txt": sample["txt"]}


def test_the_primary_store_puts_the_key_in_front() -> None:
    cooked = cook(Crude(opened("ds_a", split="train", raw=True), decode=DecodeOptions()), wants_primary)
    sample = cooked[3]
    assert sample["own"] == sample["txt"] != sample["whole"]
    with pytest.raises(ConfigError, match="can't return files by name"):
        cook(source(), wants_primary)[0]


def needs_images(sample: Any, *, images: FileStore) -> Any:
    return images.get("nothing.png")


def test_misuse_is_no_fault_of_a_sample() -> None:
    """None of these may be taken for a sample that can't be read, which would be replaced."""
    aux = ps.WithAux(source(), images=opened("fs_media", raw=True))
    for wrong in (
        lambda: cook(source(), needs_images)[0],
        lambda: cook(aux, plain)[0],
        lambda: cook(source(), []),
        lambda: cook(source(), [Cooker(plain, {"src": "a"})])[0],
        lambda: cook(MemorySource([3]), plain)[0],  # type: ignore[list-item]
    ):
        with pytest.raises(ConfigError):
            wrong()
    with pytest.raises(NameError):
        cook(source(), misspelled)[0]


def test_a_missing_file_is_a_fault_of_the_sample() -> None:
    cooked = cook(ps.WithAux(source(), images=opened("fs_media", raw=True)), needs_images)
    with pytest.raises(CookError, match=r"needs_images failed on the sample 'k0'.*nothing\.png") as caught:
        cooked[0]
    assert isinstance(caught.value, FormatError)
    assert isinstance(caught.value.__cause__, NotFound)


def test_failing_samples_follow_the_rules_of_the_loader() -> None:
    stream = cook(ps.Sequential(source()), failing)
    with pytest.raises(CookError, match=r"failing failed on the sample 'k7': found KeyError: 'caption'"):
        for _, _batch in zip(range(5), ps.Loader(stream, 10, rank=0, world=1, workers=0), strict=False):
            pass
    ld = ps.Loader(stream, 10, rank=0, world=1, workers=0, on_error="substitute", substitute_limit=0.5)
    batch = next(iter(ld))
    assert batch["substituted"].tolist() == [i == 7 for i in range(10)]
    assert batch["id"].tolist()[:7] == list(range(7))
    assert batch["id"][7] != 7


def test_skipped_samples_are_replaced_or_left_out() -> None:
    stream = cook(ps.Sequential(source()), skipping)
    with pytest.raises(SkipSample):
        stream[3]
    ld = ps.Loader(stream, 30, rank=0, world=1, workers=0, on_error="substitute", substitute_limit=0.5)
    assert next(iter(ld))["substituted"].nonzero()[0].tolist() == [3, 13, 23]


# --- stores ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(CASES["file_store_get"]) - {"what"}))
def test_files_by_name_as_energon_gives_them(name: str) -> None:
    store = FileStore(opened(name, raw=True, **({"flavor": "energon"} if name.endswith(".jsonl") else {})))
    for file, expected in CASES["file_store_get"][name].items():
        if isinstance(expected, dict):
            with pytest.raises(NotFound):
                store.get(file)
        else:
            assert hashlib.sha256(store.get(file)).hexdigest() == expected, file


def test_media_metadata() -> None:
    store = FileStore(opened("aux_img", raw=True))
    assert store.get_media_metadata("img_000.png") == ImageMetadata(20, 12, "PNG", "RGB")
    assert store.of("img_000").get_media_metadata(".png") == ImageMetadata(20, 12, "PNG", "RGB")
    with pytest.raises(NotFound):
        store.get_media_metadata("img_999.png")


def test_decoding_by_extension() -> None:
    store = FileStore(opened("aux_img", raw=True), DecodeOptions(image="rgb8"))
    value, info = store["photo/p0.jpg"]
    assert value.shape == (16, 24, 3)
    assert info.file_names == ("photo/p0.jpg",)
    assert info.index == "photo/p0.jpg"


# --- lazy --------------------------------------------------------------------------------------------------------


def test_lazy_files_are_fetched_when_they_are_asked_for() -> None:
    store = FileStore(opened("aux_img", raw=True))
    lazy = Lazy(store, "img_001.png")
    sample: dict[str, Any] = {}
    first = lazy.get(sample)
    assert hashlib.sha256(first).hexdigest() == CASES["file_store_get"]["aux_img"]["img_001.png"]
    assert lazy.get() == first
    assert [(one.shard_name, one.file_names) for one in sample["__sources__"]] == [("imgs.tar", ("img_001.png",))]
    assert pickle.loads(pickle.dumps(lazy)).get() == first
    with pytest.raises(NotFound):
        Lazy(store, "no.png").get()


class Slow:
    """A store of files of 1,000 bytes each, that come after a while."""

    decode = None

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s

    def read(self, name: str) -> tuple[bytes, str | None]:
        return self.get(name), None

    def get(self, name: str, sample: Any = None) -> bytes:
        time.sleep(self.wait_s)
        return name.encode().ljust(1000, b".")


@pytest.mark.parametrize("wait_s", [0.0, 0.001])
def test_many_handles_at_once_hold_no_more_than_the_bound(wait_s: float) -> None:
    store: Any = Slow(wait_s)
    ahead = Prefetch(threads=2, most_bytes=5_000)
    handles = [ahead.lazy(store, str(number)) for number in range(200)]
    time.sleep(0.3)
    assert 5_000 <= ahead.held_bytes <= 5_000 + 2 * 1_000
    assert [one.get() for one in handles] == [store.get(str(number)) for number in range(200)]
    assert ahead.held_bytes == 0
    ahead.close()


def test_handles_that_the_garbage_collector_drops_block_nobody() -> None:
    store: Any = Slow(0.0)
    ahead = Prefetch(threads=2, most_bytes=1 << 30)

    def work() -> None:
        for number in range(20_000):
            cycle: list[Any] = [ahead.lazy(store, str(number))]
            cycle.append(cycle)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "a dropped handle waits for a lock that its own thread holds"
    ahead.close()


def test_prefetched_files_are_held_within_a_bound() -> None:
    store = FileStore(opened("aux_img", raw=True))
    names = [f"img_{i:03}.png" for i in range(12)]
    expected = [store.get(name) for name in names]
    ahead = Prefetch(threads=2, most_bytes=sum(map(len, expected[:3])))
    handles = [ahead.lazy(store, name) for name in names]
    missing = ahead.lazy(store, "no.png")
    sample: dict[str, Any] = {}
    assert [one.get(sample) for one in handles] == expected
    assert {one.shard_name for one in sample["__sources__"]} == {"imgs.tar"}
    assert [one.get() for one in handles] == expected, "a second get gives the same"
    with pytest.raises(NotFound):
        missing.get()
    dropped = [ahead.lazy(store, name) for name in names]
    del dropped
    ahead.close()
    assert ahead.held_bytes == 0
