"""Position → index, as arithmetic: endless streams over finite sources."""

from penstock.order.permutation import GlobalOrder
from penstock.order.sequential import Sequential, SequentialOrder
from penstock.order.shuffle import Shuffle

__all__ = ["GlobalOrder", "Sequential", "SequentialOrder", "Shuffle"]
