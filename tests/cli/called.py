"""The command line, called in this process: what a process would only start once more."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
from typing import Any

import pytest
from tests.internals import main


def called(*arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
    """Exit status and both streams of `penstock`.

    Args:
        arguments: as on a command line.
        given: what stands on its standard input.
    """
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr("sys.stdin", io.StringIO(given))
        with pytest.raises(SystemExit) as ended:
            main([str(one) for one in arguments])
    status = ended.value.code
    return subprocess.CompletedProcess(
        arguments, status if isinstance(status, int) else 0, out.getvalue(), err.getvalue()
    )


def run(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> tuple[str, str]:
    """Standard output and errors of a command that ends with `status`."""
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    said = capsys.readouterr()
    assert ended.value.code == status, said.err
    return said.out, said.err


def report(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> Any:
    """What a command says with `--json`."""
    return json.loads(run(capsys, *arguments, "--json", status=status)[0])
