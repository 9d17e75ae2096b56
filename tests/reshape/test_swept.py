"""A finisher that another one of the same plan was quicker than: what that one swept is no error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.internals import current, replace

import penstock as ps


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
    name = "groups_there_of_merge" if verb == "merge" else "groups_there_of_rows"
    real, calls = current(name), list[Any]()

    def there(marks: Any) -> Any:
        calls.append(marks)
        if len(calls) == 2:  # asked by who is about to commit
            replace(monkeypatch, name, real)
            run(finish=True)
        return real(marks)

    replace(monkeypatch, name, there)
    run(finish=True)
    assert len(calls) == 2
    assert sum(len(ps.open(path)) for path in outputs) == 60
    assert not [one for path in outputs for one in ps.verify(path, depth="full")]
