"""Law: an output that fails its verification isn't visible, and what it would have replaced is unchanged."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import current, has_work, is_replaced, is_work, purge, replace

import penstock as ps
from penstock.errors import PenstockError
from penstock.formats import BUILT_IN, get_format

TOKENS = sorted(name for name in BUILT_IN if get_format(name).traits.write and get_format(name).traits.tokens)
SAMPLES = sorted(name for name in BUILT_IN if get_format(name).traits.write and not get_format(name).traits.tokens)
ROWS = [{"text": f"row {number}", "n": number} for number in range(40)]
OPTIONS: dict[str, dict[str, Any]] = {"xsv": {"separator": "|"}}
IDS = np.arange(501, 541)
Inject = Callable[[pytest.MonkeyPatch, Path], None]


def _files(folder: Path) -> dict[str, str]:
    """Digest of each file below a folder, by its name."""
    paths = (Path(one) / name for one, _, names in os.walk(folder) for name in names)
    return {str(path.relative_to(folder)): hashlib.md5(path.read_bytes()).hexdigest() for path in paths}


def _flip(folder: Path) -> None:
    """Change one byte of what was just written: in the text of the last row, or in an id."""
    paths = [Path(one) / name for one, _, names in os.walk(folder) for name in names]
    for path in (path for path in paths if not is_replaced(path) and not has_work(path)):
        data = path.read_bytes()
        if path.parent.name == "encoded_tokens" and path.name == "0":  # compressed
            path.write_bytes(data[:99] + bytes([data[99] ^ 1]) + data[100:])
            return
        for known in (b"row 39", *(IDS.astype(dtype).tobytes() for dtype in ("<u2", "<u4", "<i4"))):
            at = data.find(known)
            if at >= 0:
                path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
                return
    raise AssertionError(f"nothing to change in {paths}")


def _wrong_byte(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    for name in ("verify_samples", "verify_tokens"):
        verify: Any = current(f"convert_{name}")

        def damaged(*args: Any, _verify: Any = verify) -> Any:
            _flip(folder)
            return _verify(*args)

        replace(monkeypatch, f"convert_{name}", damaged)


def _failed_check(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def fail(*_args: Any) -> None:
        raise ps.errors.Corrupt("the converted dataset differs from the source when read back")

    for name in ("verify_samples", "verify_tokens"):
        replace(monkeypatch, f"convert_{name}", fail)


def _tokens(folder: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    with ps.create(folder / f"{seed}.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        for length in (5, 90, 300, 7):
            writer.write({"tokens": [*rng.integers(1, 1000, length).tolist(), 0]})
        writer.write({"tokens": [*IDS.tolist(), 0]})
    return folder / f"{seed}.pbin"


def _old_and_new(tmp_path: Path, to: str) -> tuple[Any, Any]:
    if to in TOKENS:
        return _tokens(tmp_path, 1), _tokens(tmp_path, 2)
    return iter(ROWS[:10]), iter(ROWS)


@pytest.mark.parametrize("inject", [_wrong_byte, _failed_check])
@pytest.mark.parametrize("replaces", [False, True], ids=["new", "overwrite"])
@pytest.mark.parametrize("to", [*TOKENS, *SAMPLES])
def test_convert_publishes_nothing_that_fails_its_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, replaces: bool, inject: Inject
) -> None:
    out = tmp_path / "made"
    out.mkdir()
    old, new = _old_and_new(tmp_path, to)
    if replaces:
        ps.convert(old, out / "x", to=to, workers=1, **OPTIONS.get(to, {}))
    before = _files(out)
    with monkeypatch.context() as patched:
        inject(patched, out)
        with pytest.raises(PenstockError):
            ps.convert(new, out / "x", to=to, workers=1, overwrite=replaces, **OPTIONS.get(to, {}))
    assert {name: one for name, one in _files(out).items() if not is_work(name)} == before


@pytest.mark.parametrize("replaces", [False, True], ids=["new", "overwrite"])
def test_purge_publishes_nothing_that_fails_its_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaces: bool
) -> None:
    out = tmp_path / "made"
    out.mkdir()
    source = _tokens(tmp_path, 1)
    ps.exclude(source, indices=[1], reason="test")
    if replaces:
        ps.convert(_tokens(tmp_path, 2), out / "x.pbin", workers=1)
    before = _files(out)
    digests: Any = current("purge_digests")
    answers = iter((lambda found: found, lambda found: ("other", None)))
    replace(monkeypatch, "purge_digests", lambda *args: next(answers)(digests(*args)))
    with pytest.raises(ps.errors.Corrupt, match="differs when read back"):
        purge(source, out / "x.pbin", overwrite=replaces)
    assert _files(out) == before
