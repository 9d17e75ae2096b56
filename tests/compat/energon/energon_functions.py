"""A task encoder that worker processes can import."""

from __future__ import annotations

from typing import Any

from penstock.compat.energon import Cooker, DefaultTaskEncoder, TextSample, basic_sample_keys, stateless


@stateless
def text(sample: Any) -> Any:
    return TextSample(**basic_sample_keys(sample), text=sample["txt"])


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(text),)

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: Any) -> Any:
        import random

        sample.text = (sample.text, random.random())
        return sample


class Copies(Encoder):
    @stateless(restore_seeds=True)
    def encode_sample(self, sample: Any) -> Any:
        import random

        for _ in range(len(sample.text) % 3):
            yield TextSample.derive_from(sample, text=(self.current_batch_index, random.random()))
