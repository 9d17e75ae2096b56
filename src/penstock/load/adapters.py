"""Callbacks for `on_metrics=` that log a loader's metrics to TensorBoard and to Weights & Biases.

```python
loader = ps.Loader(stream, 512, on_metrics=TensorBoard("runs/a") if rank == 0 else None)
```
Every rank has its own callback: seconds and bytes are per rank, sources cover all ranks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from penstock._optional import require
from penstock.errors import ConfigError
from penstock.load.metrics import Metrics
from penstock.store.place import fixed_path, local_path


@runtime_checkable
class _AddsScalars(Protocol):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> Any: ...


@runtime_checkable
class _Logs(Protocol):
    def log(self, data: dict[str, Any], /) -> Any: ...


def scalars(found: Metrics, before: Metrics | None = None) -> dict[str, float]:
    """Return the figures of a loader by name, all finite.

    Args:
        found: the current metrics.
        before: metrics of the previous call: time shares are since then; by default since the loader was created.
    """
    waiting, training = found.waiting_seconds, found.training_seconds
    if before is not None:
        waiting, training = waiting - before.waiting_seconds, training - before.training_seconds
    whole = sum(one.samples for one in found.sources.values())
    told: dict[str, float] = {
        "consumed_samples": found.consumed,
        "read_bytes": found.size_bytes,
        "substituted_samples": found.substituted,
        "waiting_seconds": found.waiting_seconds,
        "waiting_share": waiting / (waiting + training) if waiting + training > 0 else 0.0,
        "ready_batches": found.ready,
    }
    for name, seconds in found.stages.items():
        told[f"stage_seconds/{name}"] = seconds
    for name, one in found.sources.items():
        told |= {f"samples/{name}": one.samples, f"epochs/{name}": one.epochs}
        told |= {f"share/{name}": one.samples / whole} if whole else {}
        told |= {f"tokens/{name}": one.tokens} if one.tokens is not None else {}
    tokens = [one.tokens for one in found.sources.values()]
    told |= {"tokens": sum(one for one in tokens if one is not None)} if tokens and None not in tokens else {}
    return told


class TensorBoard:
    """Callback that writes a loader's metrics as TensorBoard scalars, at the loader's steps.

    Args:
        target: local folder for a new event file, created with the first metrics; or an open writer, such as torch's
            `SummaryWriter`.
        prefix: prefix of each name.

    Raises:
        ConfigError: the target is neither a folder nor a writer.
        MissingExtra: for a folder, the package `tensorboard` is not installed.
    """

    def __init__(self, target: str | os.PathLike[str] | _AddsScalars, prefix: str = "data") -> None:
        self._target, self._prefix = target, prefix
        self._before: Metrics | None = None
        self._write: Callable[[dict[str, float], int], None] | None = None
        if isinstance(target, str | os.PathLike):
            self._folder = self._target = fixed_path(local_path(target, "a TensorBoard folder"))
        elif not hasattr(target, "add_scalar"):
            hint = "Pass a folder, or a writer with add_scalar"
            raise ConfigError("not a TensorBoard folder or writer", found=type(target).__name__, hint=hint)

    def __reduce__(self) -> tuple[object, ...]:
        return (TensorBoard, (self._target, self._prefix))

    def __call__(self, found: Metrics) -> None:
        if self._write is None:
            self._write = self._opened()
        told = scalars(found, self._before)
        self._write({f"{self._prefix}/{name}": float(value) for name, value in told.items()}, found.step)
        self._before = found

    def _opened(self) -> Callable[[dict[str, float], int], None]:
        target: Any = self._target
        if isinstance(target, _AddsScalars):

            def add(told: dict[str, float], step: int) -> None:
                for name, value in told.items():
                    target.add_scalar(name, value, step)

            return add
        writers: Any = require("tensorboard.summary.writer.event_file_writer", extra="metrics")
        writer: Any = writers.EventFileWriter(self._folder)
        events: Any = require("tensorboard.compat.proto.event_pb2", extra="metrics")
        summaries: Any = require("tensorboard.compat.proto.summary_pb2", extra="metrics")

        def write(told: dict[str, float], step: int) -> None:
            values = [summaries.Summary.Value(tag=name, simple_value=value) for name, value in told.items()]
            summary = summaries.Summary(value=values)
            writer.add_event(events.Event(wall_time=time.time(), step=step, summary=summary))
            writer.flush()  # a killed run keeps its metrics

        return write


class WandB:
    """Callback that logs a loader's metrics to a run of Weights & Biases, over their own step axis.

    A run's own steps belong to the training loop. The loader's metrics use `<prefix>/step` as their step metric.

    Args:
        run: result of `wandb.init`; `mode="offline"` writes to a folder.
        prefix: prefix of each name.
        log: replacement for `run.log`, such as `functools.partial(run.log, commit=False)`, which adds the figures to
            the
            next row that the loop logs.

    Raises:
        ConfigError: this isn't a run.
    """

    def __init__(self, run: Any, prefix: str = "data", log: Callable[[dict[str, Any]], Any] | None = None) -> None:
        if not isinstance(run, _Logs):
            hint = "Pass the result of wandb.init"
            raise ConfigError("not a Weights & Biases run", found=type(run).__name__, hint=hint)
        self._run: Any = run
        self._prefix, self._log = prefix, log or run.log
        self._before: Metrics | None = None
        self._is_defined = False

    def __call__(self, found: Metrics) -> None:
        step = f"{self._prefix}/step"
        if not self._is_defined and hasattr(self._run, "define_metric"):
            self._run.define_metric(step, hidden=True)
            self._run.define_metric(f"{self._prefix}/*", step_metric=step)
            self._is_defined = True
        told: Mapping[str, float] = scalars(found, self._before)
        self._log({step: found.step, **{f"{self._prefix}/{name}": value for name, value in told.items()}})
        self._before = found
