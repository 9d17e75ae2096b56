"""`batch_pad_stack` against its rule written out in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.internals import get_source_info

from penstock.compat import energon as en

DTYPES = [torch.uint8, torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.complex64]


def by_rule(batch: list[Any]) -> Any:
    sizes = [max(one.shape[axis] for one in batch) for axis in range(batch[0].ndim)]
    made = batch[0].new_zeros((len(batch), *sizes))
    for row, one in enumerate(batch):
        made[(row, *(slice(0, size) for size in one.shape))] = one
    return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", [[(3, 2)] * 4, [(3, 2), (1, 5), (0, 1)], [()] * 3, [(2, 3, 4)], [(0,), (0,)]])
def test_every_type_and_shape(dtype: Any, shapes: Any) -> None:
    batch = [torch.arange(int(np.prod(shape))).reshape(shape).to(dtype) for shape in shapes]
    found = en.batch_pad_stack(batch)
    assert found.dtype == dtype
    assert torch.equal(found, by_rule(batch))
    assert all(found.data_ptr() != one.data_ptr() for one in batch if one.numel())


def test_tensors_that_are_not_plain() -> None:
    turned = [torch.arange(12.0).reshape(3, 4).t(), torch.arange(12.0).reshape(4, 3)]
    assert torch.equal(en.batch_pad_stack(turned), by_rule(turned))
    mixed = [torch.tensor([1, 2]), torch.tensor([1.5, 2.5])]
    assert torch.equal(en.batch_pad_stack(mixed), by_rule(mixed))
    learned = [torch.ones(2, requires_grad=True), torch.ones(2)]
    assert en.batch_pad_stack(learned).requires_grad
    twisted = [torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j])]
    assert torch.equal(en.batch_pad_stack(twisted), by_rule(twisted))


def test_tensors_of_one_shape_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("zeroed")

    batch = [torch.full((3, 8, 8), number, dtype=torch.uint8) for number in range(4)]
    monkeypatch.setattr(np, "zeros", refuse)
    monkeypatch.setattr(torch.Tensor, "new_zeros", refuse)
    found = en.generic_batch([{"image": one} for one in batch])["image"]
    assert found.sum((1, 2, 3)).tolist() == [0, 192, 384, 576]


@en.edataclass
class Pictures(en.Batch):
    image: Any
    caption: Any


def pictures(*subflavors: dict[str, Any] | None) -> list[Any]:
    return [
        en.CaptioningSample(
            __key__=str(number),
            __restore_key__=(number,),
            __subflavors__=given,
            __sources__=(en.SourceInfo("set", number, "a.tar", (f"{number}.jpg",)),),
            image=torch.zeros(3, number + 1),
            caption=f"caption {number}",
        )
        for number, given in enumerate(subflavors)
    ]


def test_from_samples_makes_lists() -> None:
    """Of tensors too: a program that pads them itself must find their own lengths."""
    batch = Pictures.from_samples(pictures({"a": 1}, {}, None))
    assert [tuple(one.shape) for one in batch.image] == [(3, 1), (3, 2), (3, 3)]
    assert batch.__subflavors__ == [{"a": 1}]
    assert [one.index for one in batch.__sources__ or ()] == [0, 1, 2]
    assert Pictures.from_samples(pictures({}, {})).__subflavors__ == []
    assert Pictures.from_samples(pictures(None)).__subflavors__ is None
    stacked = Pictures.from_samples(pictures(None, None), image=en.batch_pad_stack([torch.ones(1), torch.ones(2)]))
    assert stacked.image.shape == (2, 2)


def test_default_batches_say_the_sources_of_each_sample() -> None:
    batch = en.DefaultTaskEncoder[Any, Any, Any, Any]().batch(pictures({}, {}))
    assert [one[0].index for one in batch.__sources__] == [0, 1]
    assert batch.image.shape == (2, 3, 2)
    assert [one.index for one in get_source_info(batch) or ()] == [0, 1]
    assert [one.index for one in get_source_info(pictures({}, {})) or ()] == [0, 1]
    assert get_source_info({"text": "a"}) is None


def test_dicts_out_of_typed_samples() -> None:
    class Dicts(en.TaskEncoder[Any, Any, Any, Any]):
        def batch(self, samples: list[Any]) -> Any:
            return self._batch(samples, dict, {"caption": " ".join})

    made = Dicts().batch(pictures({}, {}))
    assert type(made) is dict
    assert (made["caption"], made["image"].shape) == ("caption 0 caption 1", (2, 3, 2))


def test_errors_of_samples_are_the_originals() -> None:
    from penstock.compat.energon import FatalSampleError
    from penstock.compat.energon.errors import SampleException

    error = FatalSampleError.from_sample(pictures({})[0], "no room")
    assert isinstance(error, (SampleException, ValueError))
    assert str(error) == "Sample 0 failed: no room"
    assert str(SampleException.from_sample_key("k")) == "Sample k failed"
