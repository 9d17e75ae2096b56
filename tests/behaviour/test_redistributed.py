"""`energon checkpoint redist`: files of states for another number of ranks; global batches stay what they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.internals import main

from .test_taken_over import ALONE, Packs, loader, rows, texts

torch: Any = pytest.importorskip("torch")
__all__ = ["rows"]


def redist(*words: Any, status: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["energon", "checkpoint", "redist", *map(str, words)])
    assert (ended.value.code or 0) == status


def saved(path: Path, folder: Path, ranks: int, *, wrapped: bool = False, name: str = "state_{}.pt") -> list[Path]:
    files: list[Path] = []
    for rank in range(ranks):
        one = loader(path, rank=rank, world=ranks, batch_size=2)
        texts(one, 5)
        files.append(folder / name.format(rank))
        state = one.save_state_rank()
        torch.save({"dataloader_state_dict": state} if wrapped else state, files[-1])
    return files


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_same_global_batches_on_other_ranks(rows: Path, tmp_path: Path, ranks: int, wrapped: bool) -> None:
    files = saved(rows, tmp_path, 2, wrapped=wrapped)
    redist("--new-world-size", ranks, *reversed(files), tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [f"state_{rank}.pt" for rank in range(ranks)]
    drawn: list[list[str]] = []
    for rank in range(ranks):
        state = torch.load(tmp_path / "out" / f"state_{rank}.pt", weights_only=True)
        one = loader(rows, rank=rank, world=ranks, batch_size=4 // ranks)
        one.restore_state_rank(state["dataloader_state_dict"] if wrapped else state)
        drawn.append(texts(one, 5))
    alone = texts(loader(rows, batch_size=4), 10)
    size = 4 // ranks
    for step in range(5):
        found = [text for own in drawn for text in own[step * size : (step + 1) * size]]
        assert sorted(found) == sorted(alone[20 + step * 4 : 24 + step * 4])


def test_packs_need_the_lanes_of_all_ranks(rows: Path, tmp_path: Path) -> None:
    packing = {"encoder": Packs(), "packing_buffer_size": 4, "lanes": 2, "batch_size": 1}
    files: list[Path] = []
    for rank in range(2):
        one = loader(rows, rank=rank, world=2, **packing)
        texts(one, 2)
        files.append(tmp_path / f"rank-{rank:03}.pt")
        torch.save(one.save_state_rank(), files[-1])
    redist(*files, tmp_path / "out", "--new-world-size", 1)
    one = loader(rows, **packing)
    one.restore_state_rank(torch.load(tmp_path / "out" / "rank-000.pt", weights_only=True))
    assert texts(one, 2)


@pytest.mark.parametrize("names", ["{}/a.pt", "s{}_of_{}.pt"])
def test_names_that_count_no_ranks(rows: Path, tmp_path: Path, names: str, capsys: pytest.CaptureFixture[str]) -> None:
    files: list[Path] = []
    for rank in range(2):
        file = tmp_path / names.format(rank, rank)
        file.parent.mkdir(exist_ok=True)
        torch.save(loader(rows, rank=rank, world=2).save_state_rank(), file)
        files.append(file)
    redist(*files, tmp_path / "out", "--new-world-size", 2, status=1)
    assert "aren't numbered by rank" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_refused(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = saved(rows, tmp_path, 2)
    before = [file.read_bytes() for file in files]
    redist(*files, tmp_path, "--new-world-size", 2, status=1)
    assert [file.read_bytes() for file in files] == before
    for name, state in (("theirs.pt", ALONE), ("plain.pt", {"a": 1})):
        torch.save(state, tmp_path / name)
        redist(tmp_path / name, tmp_path / "out", "--new-world-size", 1, status=1)
        assert "not a state of this loader" in capsys.readouterr().err
    redist(*files, tmp_path / "out", "--new-world-size", 0, status=2)
    assert not (tmp_path / "out").exists()


def test_what_is_there_stays(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = saved(rows, tmp_path, 2)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "state_1.pt").write_bytes(b"mine")
    redist(*files, tmp_path / "out", "--new-world-size", 2, status=1)
    assert "state_1.pt: the output exists and is not a state" in capsys.readouterr().err
    assert [(file.name, file.read_bytes()) for file in (tmp_path / "out").iterdir()] == [("state_1.pt", b"mine")]


def test_states_that_are_there_are_replaced(rows: Path, tmp_path: Path) -> None:
    files, out = saved(rows, tmp_path, 2), tmp_path / "out"
    for ranks in (1, 4, 2):  # the folder that every redistribution of a run is written to
        redist(*files, out, "--new-world-size", ranks)
    assert sorted(file.name for file in out.iterdir()) == [f"state_{rank}.pt" for rank in range(4)]
    assert len({file.read_bytes() for file in out.iterdir()}) == 1
