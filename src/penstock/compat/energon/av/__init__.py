"""Energon's module `av`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock._facade import modules_of
from penstock.compat.energon.av.utils import get_clips_uniform as get_clips_uniform
from penstock.compat.energon.av.utils import get_single_frames_uniform as get_single_frames_uniform
from penstock.compat.energon.media import AVData as AVData
from penstock.compat.energon.media import AVDecoder as AVDecoder

__getattr__ = modules_of(__name__)
