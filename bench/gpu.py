"""How much does the loader slow a GPU training step, compared with the same step on one fixed batch?"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice, pairwise
from typing import Any

import data
import images
from harness import PYTHON, NotRun, Options, Result, Row, alternate, answer, child, columns, limit, row

TARGET = 0.99  # of the steps per second without a loader

VOCABULARY, LENGTH, WIDTH, LAYERS, HEADS = 50_304, 1_024, 768, 12, 12
"""A decoder of 125 million parameters."""

_WARM_STEPS = 10
_BATCHES = (4, 8, 16, 32, 64, 128, 256)


def run(options: Options) -> Result:
    """Run pairs of child processes with the largest batch that fits, for tokens and for images."""
    try:
        import torch
    except ImportError:
        raise NotRun("torch is not installed") from None
    if not torch.cuda.is_available():
        raise NotRun("no CUDA device")
    rows: list[Row] = []
    for kind, path, steps in (("tokens", data.packed_tokens(), 50), ("images", images.dataset(), 100)):
        given = {"kind": kind, "path": path, "device": "cuda"}
        batch = int(child(PYTHON, __file__, "largest", **given)["batch"])
        given |= {"batch": batch, "steps": 20 if options.quick else steps}
        pairs = alternate(
            lambda g=given: child(PYTHON, __file__, "step", loads=True, **g),
            lambda g=given: child(PYTHON, __file__, "step", loads=False, **g),
            options.pairs(3),
        )
        what = f"{kind}, batches of {batch}"
        rate = columns(pairs, "steps_per_second", "steps_per_second")
        rows.append(row(what, "steps/s", rate, "the same step on one fixed batch", TARGET))
        rows.append(limit(f"{what}: tensors on the GPU", "MB/s", [ours["mb_per_second"] for ours, _ in pairs], None))
        resumed = [child(PYTHON, __file__, "resumed", **given)["seconds"] for _ in range(options.pairs(3))]
        rows.append(limit(f"{what}: resume until the first batch is on the GPU", "s", resumed, None))
    name = torch.cuda.get_device_name()
    notes = [
        f"GPU: {name}. Tokens: a decoder of {LAYERS} layers, width {WIDTH}, windows of {LENGTH:,}, bfloat16. "
        f"Images: JPEGs of {images.SIDE} × {images.SIDE} as uint8, a convolutional model with 24 million parameters.",
        "MB/s counts the size of the tensors on the GPU. Fewer bytes are transferred: token ids in their stored width, "
        "and the tokens of inputs and targets only once.",
    ]
    return Result("GPU training step with and without the loader", rows, notes)


# --- in children -------------------------------------------------------------------------------------------------


def largest(kind: str, path: str, device: str) -> dict[str, float]:
    """Return the largest batch size of `_BATCHES` with which steps fit into the memory of the device."""
    import torch

    fits = _BATCHES[0]
    for batch in _BATCHES:
        try:
            train = _trainer(kind, device)
            fixed = _fixed_batch(kind, path, batch, device)
            for _ in range(2):  # the optimizer allocates its state at the end of the first step
                train(fixed)
            fits = batch
        except torch.cuda.OutOfMemoryError:
            break
        finally:
            train = None
            torch.cuda.empty_cache()
    return {"batch": fits}


def step(
    kind: str, path: str, device: str, batch: int, steps: int, loads: bool, warm_steps: int = _WARM_STEPS,
    **sizes: int,
) -> dict[str, float]:  # fmt: skip
    """Return steps per second and MB/s of tensors on the device, with the loader or with one fixed batch."""
    train = _trainer(kind, device, **sizes)
    fixed = None if loads else _fixed_batch(kind, path, batch, device)
    with _loader(kind, path, batch, device) as loader:
        batches = iter(loader) if fixed is None else iter(lambda: fixed, None)
        for one in islice(batches, warm_steps):
            train(one)
        _wait(device)
        moved_bytes, started = 0, time.perf_counter()
        for one in islice(batches, steps):
            train(one)
            moved_bytes += sum(_size_bytes(value) for value in one.values()) if loads else 0
        _wait(device)
        seconds = time.perf_counter() - started
    return {"steps_per_second": steps / seconds, "mb_per_second": moved_bytes / 1e6 / seconds}


def resumed(kind: str, path: str, device: str, batch: int, steps: int) -> dict[str, float]:
    """Return the seconds from a state to the first batch on the device, including opening the dataset."""
    _wait(device)  # set up the device first
    with _loader(kind, path, batch, device) as loader:
        for _ in islice(loader, steps):
            pass
        state = loader.state_dict()
    started = time.perf_counter()
    with _loader(kind, path, batch, device) as loader:
        loader.load_state_dict(state)
        next(iter(loader))
        _wait(device)
    return {"seconds": time.perf_counter() - started}


def _loader(kind: str, path: str, batch: int, device: str) -> Any:
    import penstock as ps
    from penstock.load.torch import torch_loader

    if kind == "tokens":
        source: Any = ps.Chunk(LENGTH, labels="shift", fields=("inputs", "targets"))(ps.open(path))
    else:
        source = ps.open(path, split="train", decode="uint8", columns=["image"])
    return torch_loader(ps.Shuffle(source, seed=7), batch, rank=0, world=1, workers=8, device=device)


def _fixed_batch(kind: str, path: str, batch: int, device: str) -> Any:
    with _loader(kind, path, batch, device) as loader:
        return next(iter(loader))


def _size_bytes(value: Any) -> int:
    return value.numel() * value.element_size() if hasattr(value, "element_size") else 0


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def _trainer(kind: str, device: str, **sizes: int) -> Callable[[Any], None]:
    """Return a function that runs one training step on a batch."""
    import torch

    torch.manual_seed(0)
    model = (_decoder(**sizes) if kind == "tokens" else _convolutions(**sizes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def train(batch: Any) -> None:
        with torch.autocast(device, torch.bfloat16):
            loss = model(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return train


def _decoder(width: int = WIDTH, layers: int = LAYERS, heads: int = HEADS, vocabulary: int = VOCABULARY) -> Any:
    from torch import nn
    from torch.nn import functional

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(LENGTH, width)
            layer = nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

        def forward(self, batch: Any) -> Any:
            inputs, targets = batch["inputs"], batch["targets"]
            hidden = self.tokens(inputs) + self.places.weight[: inputs.shape[1]]
            mask = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1], device=inputs.device)
            hidden = self.layers(hidden, mask=mask, is_causal=True)
            scores = functional.linear(hidden, self.tokens.weight)
            return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())

    return Decoder()


def _convolutions(width: int = 64, classes: int = 1_000) -> Any:
    from torch import nn

    class Convolutions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [3, *(width * times for times in (1, 2, 4, 8, 16))]
            layers = [
                nn.Sequential(nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU())
                for before, after in pairwise(sizes)
            ]
            self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
            self.more = nn.Sequential(*(nn.Linear(sizes[-1], sizes[-1]) for _ in range(16)))
            self.head = nn.Linear(sizes[-1], classes)

        def forward(self, batch: Any) -> Any:
            pixels = batch["image"].permute(0, 3, 1, 2).float() / 255  # converted on the device
            return self.head(self.more(self.layers(pixels))).square().mean()

    return Convolutions()


if __name__ == "__main__":
    answer(globals())
