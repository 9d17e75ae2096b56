"""A C++ call that returns only when the interpreter is being taken down."""

import time

import torch


class Late:
    def __init__(self) -> None:
        self.future = torch.futures.Future()

    def __del__(self, sleep=time.sleep) -> None:
        self.future.set_result(1)
        sleep(1)


_late = Late()
future = _late.future
