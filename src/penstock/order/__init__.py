"""Orders, which assign samples to positions: endless streams over finite sources, and parts of both."""

from penstock.order.blocks import BlockOrder
from penstock.order.ordered import OrderedStream
from penstock.order.permutation import GlobalOrder
from penstock.order.shuffle import Sequential, SequentialOrder, Shuffle
from penstock.order.skip import Skip
from penstock.order.take import Take

__all__ = ["BlockOrder", "GlobalOrder", "OrderedStream", "Sequential", "SequentialOrder", "Shuffle", "Skip", "Take"]
