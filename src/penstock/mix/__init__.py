"""Many sources or streams → one."""

from penstock.mix.concat import Concat, ConcatSource, ConcatTokens
from penstock.mix.mapped import Map, MappedSource, MappedStream

__all__ = ["Concat", "ConcatSource", "ConcatTokens", "Map", "MappedSource", "MappedStream"]
