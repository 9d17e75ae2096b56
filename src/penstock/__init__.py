"""Penstock: the pipe between stored data and a training run.

Everything here is imported at first use, so that `import penstock` costs next to nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.check import repair as repair
    from penstock.check import verify as verify
    from penstock.convert import convert as convert
    from penstock.cook import PackStream as PackStream
    from penstock.formats import create as create
    from penstock.formats import open_source as open
    from penstock.formats.samples.webdataset.sample_types import register_sample_type as register_sample_type
    from penstock.load import Loader as Loader
    from penstock.load import merge_states as merge_states
    from penstock.mix import Balance as Balance
    from penstock.mix import Blend as Blend
    from penstock.mix import Concat as Concat
    from penstock.mix import Epochs as Epochs
    from penstock.mix import Join as Join
    from penstock.mix import Map as Map
    from penstock.mix import Stages as Stages
    from penstock.mix import StreamingOrder as StreamingOrder
    from penstock.mix import WithAux as WithAux
    from penstock.mix import subset as subset
    from penstock.order import Sequential as Sequential
    from penstock.order import Shuffle as Shuffle
    from penstock.order import Skip as Skip
    from penstock.order import Take as Take
    from penstock.pack import BestFit as BestFit
    from penstock.pack import Chunk as Chunk
    from penstock.pack import MegatronBlocks as MegatronBlocks
    from penstock.pack import PackByLength as PackByLength
    from penstock.pack import Whole as Whole
    from penstock.recipe import open_metadataset as open_metadataset
    from penstock.recipe import open_recipe as open_recipe

# Refused once the main program is over, while its threads and exit handlers may still read.
importlib.import_module("concurrent.futures.thread")

__version__ = "0.1.0"

_WHERE = {
    "Balance": "penstock.mix:Balance",
    "BestFit": "penstock.pack:BestFit",
    "Blend": "penstock.mix:Blend",
    "Chunk": "penstock.pack:Chunk",
    "Concat": "penstock.mix:Concat",
    "Epochs": "penstock.mix:Epochs",
    "Join": "penstock.mix:Join",
    "Loader": "penstock.load:Loader",
    "Map": "penstock.mix:Map",
    "MegatronBlocks": "penstock.pack:MegatronBlocks",
    "PackByLength": "penstock.pack:PackByLength",
    "PackStream": "penstock.cook:PackStream",
    "Sequential": "penstock.order:Sequential",
    "Shuffle": "penstock.order:Shuffle",
    "Skip": "penstock.order:Skip",
    "Stages": "penstock.mix:Stages",
    "StreamingOrder": "penstock.mix:StreamingOrder",
    "Take": "penstock.order:Take",
    "Whole": "penstock.pack:Whole",
    "WithAux": "penstock.mix:WithAux",
    "convert": "penstock.convert:convert",
    "create": "penstock.formats:create",
    "merge_states": "penstock.load:merge_states",
    "open": "penstock.formats:open_source",
    "open_metadataset": "penstock.recipe:open_metadataset",
    "open_recipe": "penstock.recipe:open_recipe",
    "register_sample_type": "penstock.formats.samples.webdataset.sample_types:register_sample_type",
    "repair": "penstock.check:repair",
    "subset": "penstock.mix:subset",
    "verify": "penstock.check:verify",
}

__all__ = [
    "Balance",
    "BestFit",
    "Blend",
    "Chunk",
    "Concat",
    "Epochs",
    "Join",
    "Loader",
    "Map",
    "MegatronBlocks",
    "PackByLength",
    "PackStream",
    "Sequential",
    "Shuffle",
    "Skip",
    "Stages",
    "StreamingOrder",
    "Take",
    "Whole",
    "WithAux",
    "convert",
    "create",
    "merge_states",
    "open",
    "open_metadataset",
    "open_recipe",
    "register_sample_type",
    "repair",
    "subset",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__


class _Facade(ModuleType):
    """Keeps the name of a function from going to the submodule of the same name when that is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _WHERE and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Facade
