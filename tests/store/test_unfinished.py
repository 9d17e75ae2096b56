"""The mark of unfinished work: it stays where the output is there, and its run did not come to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.store.local import LocalStore
from penstock.store.put import put
from penstock.store.unfinished import Once


@pytest.mark.parametrize("visible", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_the_same_work_knows_an_output_at_which_it_was_interrupted(
    visible: bool, error: type[BaseException], tmp_path: Path
) -> None:
    store, path = LocalStore(), str(tmp_path / "out")

    def published(told: Any) -> str | None:
        return f"made {told}" if store.exists(path) else None

    def commit() -> str:
        if visible:
            put(store, path, b"data")
        raise error

    once = Once(store, path, {"seed": 1}, [path], published)
    with pytest.raises(error):
        once.commit(commit, told=3)
    known = visible and error is KeyboardInterrupt  # an error is told to the caller, who asks anew
    assert once.made() == ("made 3" if known else None)
    assert [one.name for one in tmp_path.iterdir()] == (["out"] if visible else [])
