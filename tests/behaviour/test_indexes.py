"""`current_batch_index` and `current_sample_index`: the same after a restore, on any ranks, by threads and processes.

That they are the original's is shown in `tests/interop/test_energon_programs.py`, by the program that is read here too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.internals import join_states

PROGRAM = Path(__file__).parent.parent / "interop" / "programs" / "energon_indexes.py"
SEVERAL = ["Two", "AnyNumber", "Packs", "SomePacks", "EncodedAfterwards", "Groups"]


@pytest.fixture(scope="module")
def program() -> ModuleType:
    module = ModuleType("energon_indexes")
    exec(PROGRAM.read_text().replace("megatron.energon", "penstock.compat.energon"), module.__dict__)
    return module


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("indexes") / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {number}"}) + "\n" for number in range(60)))
    return str(path)


def encoded(batch: Any) -> Iterator[int]:
    """The batch index of every sample of a batch without packs when it was encoded."""
    return (seen[1] for sample in batch[:3] for seen in sample if seen[0] == "encode")


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("name", ["Two", "AnyNumber"])
def test_of_generators_it_is_the_batch_that_the_sample_is_in(
    program: ModuleType, path: str, name: str, world: int, workers: int
) -> None:
    for rank in range(world):
        batches = islice(program.loader(path, name, "train", rank, world, workers), 20)
        for number, batch in enumerate(batches):
            assert list(encoded(batch)) == [number] * 3
            assert batch[-2:] == [["batch", number, number], ["encode_batch", number, number]]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", SEVERAL)
def test_the_same_after_a_restore_at_every_step(program: ModuleType, path: str, name: str, workers: int) -> None:
    def loader() -> Any:
        return program.loader(path, name, "train", 1, 2, workers, lanes=4)

    straight = list(islice(loader(), 14))
    running = loader()
    for step, batch in enumerate(islice(running, 10), 1):
        assert batch == straight[step - 1]
        resumed = loader()
        resumed.restore_state_rank(json.loads(json.dumps(running.save_state_rank())))
        assert list(islice(resumed, 3)) == straight[step : step + 3]


def by_key(program: ModuleType, name: str) -> str:
    """An encoder that does, of each sample, what its key says: other ranks count samples otherwise."""

    class ByKey(program.ENCODERS[name]):
        def encode_sample(self, sample: Any) -> Any:
            seen = [*sample.text, self.seen("encode")]
            return program.TextSample.derive_from(sample, text=seen)

        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            packs: list[list[Any]] = [[]]
            for one in samples:
                packs[-1].append(one)
                if int(one.__key__) % 3 == 0:
                    packs.append([])
            return packs if name == "Packs" else packs[:-1]

        def batch_group_criterion(self, sample: Any) -> tuple[int, None]:
            return int(sample.__key__) % 3, None

    class AnyNumber(ByKey):
        def encode_sample(self, sample: Any) -> Iterator[Any]:
            for _ in range(int(sample.__key__) % 3):
                yield super().encode_sample(sample)

    kind: Any = AnyNumber if name == "AnyNumber" else ByKey
    if name != "Groups":
        kind.batch_group_criterion = program.ENCODERS[name].batch_group_criterion
    program.ENCODERS[f"{name} by key"] = kind
    return f"{name} by key"


@pytest.mark.parametrize("name", ["AnyNumber", "Packs", "SomePacks", "Groups"])
def test_the_same_on_other_ranks(program: ModuleType, path: str, name: str) -> None:
    """A run on another number of ranks goes on with the numbers that it would have had from the beginning."""
    name = by_key(program, name)
    before = [program.loader(path, name, "train", rank, 2, lanes=4) for rank in range(2)]
    for one in before:
        list(islice(one, 4))
    given = 2 * 4 if "Groups" in name else 2 * 4 * 3  # groups, or samples, of all ranks
    state = join_states([one.save_state_rank() for one in before])
    for rank in range(4):
        options = {"lanes": 4, **({} if "Groups" in name else {"batch_size": 1})}
        resumed = program.loader(path, name, "train", rank, 4, 1, **options)
        resumed.restore_state_rank(state)
        straight = program.loader(path, name, "train", rank, 4, **options)
        assert list(islice(resumed, 6)) == list(islice(straight, given // 4, given // 4 + 6))


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_batch_made_again_by_its_key_says_the_same(program: ModuleType, path: str, split: str) -> None:
    class Keys:
        def batch(self, samples: list[Any]) -> Any:
            return {"seen": [one.text for one in samples], "keys": tuple(one.__restore_key__ for one in samples)}

        def encode_batch(self, batch: Any) -> Any:
            return batch

    for name in ["Plain", *(SEVERAL if split == "train" else [])]:
        kind = type("Keyed", (Keys, program.ENCODERS[name]), {})
        program.ENCODERS["Keyed"] = kind
        loader = program.loader(path, "Keyed", split, 0, 1, 2)
        for batch in islice(loader, 5):
            again = loader.restore_sample(batch["keys"])
            assert again["seen"] == batch["seen"], name
