"""Hooks a fresh interpreter whose parent is hooked; see `hook.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import hook

hook.install_from_environment()
