"""Classes and functions that combine several sources or streams into one."""

from penstock.mix.auxiliary import AuxSource, AuxStream, Map, MappedSource, MappedStream, WithAux, aux_of
from penstock.mix.balance import Balance
from penstock.mix.blend import Blend
from penstock.mix.concat import Concat, ConcatSource, ConcatTokens
from penstock.mix.epochs import Epochs
from penstock.mix.join import Join, JoinedSource
from penstock.mix.shares import block_counts
from penstock.mix.stages import Stages
from penstock.mix.streaming import StreamingOrder
from penstock.mix.subset import subset

__all__ = [
    "AuxSource",
    "AuxStream",
    "Balance",
    "Blend",
    "Concat",
    "ConcatSource",
    "ConcatTokens",
    "Epochs",
    "Join",
    "JoinedSource",
    "Map",
    "MappedSource",
    "MappedStream",
    "Stages",
    "StreamingOrder",
    "WithAux",
    "aux_of",
    "block_counts",
    "subset",
]
