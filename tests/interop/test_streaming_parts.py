"""The functions of `streaming.base.compression`, `.hashing` and `.shuffle` give what the original's give."""

from __future__ import annotations

import json
import runpy

import peers


def test_the_same_of_both() -> None:
    script = peers.SCRIPTS / "streaming_parts.py"
    theirs = peers.run_script("streaming", script, {})
    ours = json.loads(json.dumps(runpy.run_path(str(script))["main"]("penstock.compat.streaming")))
    assert ours == theirs
    assert len(theirs["refused"]) == 3
