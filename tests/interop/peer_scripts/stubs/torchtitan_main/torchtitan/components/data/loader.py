"""Stand-in for the module of torchtitan's main branch (b5bcd76c, August 2026): the same names and arguments.

The real one needs Grain and PyTorch nightlies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch.distributed.checkpoint.stateful import Stateful


class Configurable:
    """A class that its nested `Config` builds."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        _owner: ClassVar[Any] = None

        def build(self, **words: Any) -> Any:
            return self._owner(config=replace(self), **words)

    def __init_subclass__(cls, **words: Any) -> None:
        super().__init_subclass__(**words)
        if "Config" in cls.__dict__:
            cls.Config._owner = cls


class BaseDataLoader(Stateful, ABC, Configurable):
    """Base class of what the trainer takes batches from."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        pass

    @abstractmethod
    def __iter__(self) -> Any: ...

    def close(self) -> None:
        pass
