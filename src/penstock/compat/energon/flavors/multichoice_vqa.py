"""Energon's module `flavors.multichoice_vqa`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.factories import MultiChoiceVQAWebdataset as MultiChoiceVQAWebdataset
from penstock.compat.energon.samples import MultiChoiceVQASample as MultiChoiceVQASample
