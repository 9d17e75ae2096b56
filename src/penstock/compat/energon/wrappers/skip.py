"""Energon's module `wrappers.skip`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.cook import SkipSample as SkipSample
