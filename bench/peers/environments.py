"""Environments of the peers, shared with the interop tests."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path

from harness import ROOT, NotRun


@cache
def interpreter(name: str) -> Path:
    """Return the interpreter of a peer; create its environment if missing."""
    spec = importlib.util.spec_from_file_location("interop_peers", ROOT / "tests" / "interop" / "peers.py")
    if spec is None or spec.loader is None:
        raise NotRun("tests/interop/peers.py is missing")
    peers = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = peers
    spec.loader.exec_module(peers)
    try:
        return peers.ensure(name)
    except peers.PeerError as error:
        raise NotRun(f"{name} is not installed: {error}") from error
