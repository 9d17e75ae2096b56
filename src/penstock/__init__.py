"""Penstock: the pipe between stored data and a training run.

Everything here is imported at first use, so that `import penstock` costs next to nothing.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from penstock._facade import facade

if TYPE_CHECKING:
    from penstock.check import repair as repair
    from penstock.check import verify as verify
    from penstock.convert import convert as convert
    from penstock.cook import PackStream as PackStream
    from penstock.formats import create as create
    from penstock.formats import open as open
    from penstock.formats.samples.webdataset.sample_types import register_sample_type as register_sample_type
    from penstock.load import Loader as Loader
    from penstock.load import merge_states as merge_states
    from penstock.look.diff import diff as diff
    from penstock.look.exclude import exclude as exclude
    from penstock.look.find import find as find
    from penstock.look.lineage import lineage as lineage
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
    from penstock.pack import FillInTheMiddle as FillInTheMiddle
    from penstock.pack import MegatronBlocks as MegatronBlocks
    from penstock.pack import PackByLength as PackByLength
    from penstock.pack import Whole as Whole
    from penstock.prepare.energon.run import prepare as prepare
    from penstock.prepare.jsonl_index import index as index
    from penstock.prepare.media.run import prepare_media as prepare_media
    from penstock.prepare.tokens.pipeline import pack as pack
    from penstock.recipe import open_metadataset as open_metadataset
    from penstock.recipe import open_recipe as open_recipe
    from penstock.reshape.filter import filter as filter
    from penstock.reshape.merge import merge as merge
    from penstock.reshape.shuffle import shuffle as shuffle
    from penstock.reshape.split import split as split
    from penstock.verbs import cache as cache
    from penstock.verbs import explain as explain
    from penstock.verbs import head as head
    from penstock.verbs import info as info
    from penstock.verbs import plan as plan
    from penstock.verbs import purge as purge
    from penstock.verbs import stage as stage
    from penstock.verbs import status as status
    from penstock.view.report import report as report

__version__ = "0.2.0"

__getattr__, __dir__ = facade(__name__)


def load_ipython_extension(shell: object) -> None:
    """Show batches in a notebook: `%load_ext penstock`. Sources, streams and loaders are shown without it."""
    from penstock.view.notebook import load

    load(shell)


def unload_ipython_extension(shell: object) -> None:
    """Undo `load_ipython_extension`: `%unload_ext penstock`."""
    from penstock.view.notebook import unload

    unload(shell)


class _Facade(ModuleType):
    """Module class that protects a function from the submodule of the same name, which an import would assign."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in __dir__()):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Facade
