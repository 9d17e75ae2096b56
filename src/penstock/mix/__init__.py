"""Many sources or streams → one."""

from penstock.mix.auxiliary import AuxSource, AuxStream, WithAux, aux_of
from penstock.mix.blend import Blend
from penstock.mix.concat import Concat, ConcatSource, ConcatTokens
from penstock.mix.mapped import Map, MappedSource, MappedStream

__all__ = [
    "AuxSource",
    "AuxStream",
    "Blend",
    "Concat",
    "ConcatSource",
    "ConcatTokens",
    "Map",
    "MappedSource",
    "MappedStream",
    "WithAux",
    "aux_of",
]
