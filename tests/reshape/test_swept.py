"""A finisher that another one of the same plan was quicker than: what that one swept is no error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.reshape import row_job, shard_copies


def write(path: Path) -> None:
    with ps.create(path, format="mds", columns={"id": "int"}, size_limit=400) as writer:
        for number in range(60):
            writer.write({"id": number})


@pytest.mark.parametrize("verb", ["split", "shuffle", "merge"])
def test_who_commits_after_another_swept_finds_it_complete(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a")
    outputs = [tmp_path / name for name in (["a_train", "a_validation"] if verb == "split" else ["out"])]

    def run(**how: Any) -> None:
        if verb == "split":
            ps.split(tmp_path / "a", tmp_path, ratio=(1, 1), seed=1, **how)
        elif verb == "shuffle":
            ps.shuffle(tmp_path / "a", tmp_path / "out", seed=1, **how)
        else:
            ps.merge([tmp_path / "a"], tmp_path / "out", **how)

    for part in (0, 1):
        run(part=(part, 2))
    module = shard_copies if verb == "merge" else row_job
    real, calls = module.groups_there, list[Any]()

    def there(marks: Any) -> Any:
        calls.append(marks)
        if len(calls) == 2:  # asked by who is about to commit
            monkeypatch.setattr(module, "groups_there", real)
            run(finish=True)
        return real(marks)

    monkeypatch.setattr(module, "groups_there", there)
    run(finish=True)
    assert len(calls) == 2
    assert sum(len(ps.open(path)) for path in outputs) == 60
    assert not [one for path in outputs for one in ps.verify(path, depth="full")]
