"""Runs commands in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.cli.main import main


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
