"""Masks and slices of a batch, against a dense mask and plain slices."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from penstock.errors import ConfigError
from penstock.load import Loader
from penstock.load.torch import block_mask, context_parallel, torch_loader
from penstock.order import Sequential
from penstock.pack import BestFit, Chunk
from penstock.testing.memory import MemoryTokens

DOCUMENTS = [[*range(1, 3 + i * 5 % 23), 0] for i in range(60)]
SOURCE = MemoryTokens(DOCUMENTS, eos_id=0)


def batch_of(packing: Any, samples: int = 3) -> Any:
    return next(iter(torch_loader(Sequential(packing(SOURCE)), samples, rank=0, world=1, workers=0)))


def dense(segment_ids: Any) -> Any:
    """bool[k, L, L], by the rule."""
    length = segment_ids.shape[1]
    causal = torch.ones(length, length).tril().bool()
    return causal & (segment_ids[:, :, None] == segment_ids[:, None, :])


def full_mask(mask: Any, samples: int, length: int) -> Any:
    """bool[k, L, L] that a `BlockMask` lets through: its blocks, and in partial ones its function."""
    size = mask.BLOCK_SIZE[0]
    b, q, k = torch.meshgrid(*(torch.arange(n) for n in (samples, length, length)), indexing="ij")
    inside = mask.mask_mod(b, 0, q, k)
    blocks = -(-length // size)
    let = torch.zeros(samples, blocks, blocks, dtype=torch.bool)
    through = let.clone()
    for chosen, counts, places in (
        (let, mask.kv_num_blocks, mask.kv_indices),
        (through, mask.full_kv_num_blocks, mask.full_kv_indices),
    ):
        for sample in range(samples):
            for row in range(blocks):
                chosen[sample, row, places[sample, 0, row, : counts[sample, 0, row]].long()] = True
    wide = [one.repeat_interleave(size, 1).repeat_interleave(size, 2)[:, :length, :length] for one in (let, through)]
    return (wide[0] & inside) | wide[1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(1, 9), min_size=1), min_size=1, max_size=3), st.integers(1, 40), st.integers(1, 9))
def test_a_block_mask_is_the_dense_mask(lengths: Any, length: int, size: int) -> None:
    rows = [np.repeat(np.arange(1, len(row) + 1), row) for row in lengths]
    ids = np.stack([np.pad(row[:length], (0, max(0, length - len(row)))) for row in rows]).astype(np.int32)
    mask = block_mask({"segment_ids": ids}, block_size=size)
    expected = dense(torch.as_tensor(ids))
    assert torch.equal(full_mask(mask, len(ids), length), expected)

    def rule(b: Any, _h: Any, q: Any, k: Any) -> Any:
        return expected[b, q, k]

    theirs = create_block_mask(rule, len(ids), None, length, length, device="cpu", BLOCK_SIZE=size)
    assert torch.equal(mask.to_dense(), theirs.to_dense())  # no block too many
    if size > 1:  # a block of one token is full for torch, and here only below the diagonal
        assert torch.equal(mask.full_kv_num_blocks, theirs.full_kv_num_blocks)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("packing", [Chunk(32, labels="shift"), BestFit(32)])
def test_three_ways_of_attention_agree(packing: Any) -> None:
    batch = batch_of(packing)
    ids, length = batch["segment_ids"], 32
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 2, length, 8) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=dense(ids)[:, None])
    flex: Any = flex_attention(q, k, v, block_mask=block_mask(batch, block_size=16))
    assert torch.allclose(flex, expected, atol=1e-5)
    # Variable-length attention: documents one after another, without the padding.
    real = (ids > 0).reshape(-1)
    flat = [one.transpose(1, 2).reshape(-1, 2, 8)[real] for one in (q, k, v, expected)]
    borders = batch["cu_seqlens"].tolist()
    assert borders[-1] == int(real.sum())
    assert batch["max_seqlen"] == max(np.diff(borders))
    for start, stop in pairwise(borders):
        one = [part[start:stop].transpose(0, 1)[None] for part in flat]
        own = torch.nn.functional.scaled_dot_product_attention(*one[:3], is_causal=True)
        assert torch.allclose(own, one[3], atol=1e-5)
    positions = batch["positions"].reshape(-1)[real].tolist()
    assert positions == [place for start, stop in pairwise(borders) for place in range(stop - start)]


@pytest.mark.parametrize("ids", [None, [1, 2], [[2, 1]], [[1, 0, 2]]])
def test_no_ids_to_make_a_mask_of(ids: Any) -> None:
    batch = {} if ids is None else {"segment_ids": torch.tensor(ids)}
    with pytest.raises(ConfigError, match="segment_ids"):
        block_mask(batch)


def test_parts_of_context_parallel_ranks() -> None:
    packing = Chunk(24, labels="shift")
    for batch in (batch_of(packing), next(iter(Loader(Sequential(packing(SOURCE)), 3, rank=0, world=1, workers=0)))):
        for world in (1, 2, 3):
            parts = [context_parallel(batch, rank, world) for rank in range(world)]
            zigzag = [context_parallel(batch, rank, world, layout="zigzag") for rank in range(world)]
            step = 24 // (2 * world)
            for name in ("tokens", "inputs", "targets", "loss_mask", "segment_ids", "positions"):
                whole = np.asarray(batch[name])
                assert np.array_equal(np.concatenate([np.asarray(part[name]) for part in parts], 1), whole)
                for rank, part in enumerate(zigzag):
                    back = 2 * world - 1 - rank
                    places = [*range(rank * step, (rank + 1) * step), *range(back * step, (back + 1) * step)]
                    assert np.array_equal(np.asarray(part[name]), whole[:, places])
                    assert type(part[name]) is type(batch[name])
            assert all(part["cu_seqlens"] is batch["cu_seqlens"] for part in [*parts, *zigzag])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0, 5), "equal pieces"),
        ((0, 4, "zigzag"), "equal pieces"),
        ((2, 2), "rank"),
        ((0, 2, "striped"), "layout"),
    ],
)
def test_parts_that_can_not_be(arguments: Any, says: str) -> None:
    batch = {"tokens": np.zeros((2, 12)), "more": np.zeros(5)}
    with pytest.raises(ConfigError, match=says):
        context_parallel(batch, *arguments)
    with pytest.raises(ConfigError, match="length"):
        context_parallel({"more": np.zeros(5)}, 0, 1)


@pytest.mark.parametrize("tensors", [True, False])
@pytest.mark.parametrize("packing", [BestFit(24), Chunk(25, labels="shift")])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_documents_are_padded_and_cut_each_by_itself(world: int, packing: Any, tensors: bool) -> None:
    loader = Loader(Sequential(packing(SOURCE)), 3, rank=0, world=1, workers=0)
    batch = batch_of(packing) if tensors else next(iter(loader))
    ids = np.asarray(batch["segment_ids"])
    batch["scores"] = batch["positions"][:, :, None] * batch["positions"].reshape(3, -1, 1)[:, :, [0, 0]]
    batch["key"] = ["a", "b", "c"]
    documents = [(row, np.flatnonzero(ids[row] == one)) for row in range(3) for one in range(1, ids[row].max() + 1)]
    lengths = [len(places) for _, places in documents]
    padded = [-(-length // (2 * world)) * 2 * world for length in lengths]
    parts = [context_parallel(batch, rank, world, "per-document") for rank in range(world)]
    for rank, part in enumerate(parts):
        assert np.asarray(part["cu_seqlens"]).tolist() == np.cumsum([0, *lengths]).tolist()
        assert np.array_equal(part["cu_seqlens"], batch["cu_seqlens"])
        assert np.asarray(part["cu_seqlens_padded"]).tolist() == np.cumsum([0, *padded]).tolist()
        for name in ("cu_seqlens", "cu_seqlens_padded"):
            assert type(part[name]) is type(batch["cu_seqlens"])
            assert part[name].dtype == batch["cu_seqlens"].dtype
        assert part["max_seqlen"] == max(padded)
        assert part["key"] is batch["key"]
        for name in ("tokens", "inputs", "targets", "loss_mask", "positions", "segment_ids", "scores"):
            whole = np.asarray(batch[name])
            expected = []
            for number, (row, places) in enumerate(documents):
                values = whole[row, places] if name != "segment_ids" else np.full(len(places), number + 1)
                rest = np.zeros((padded[number] - len(places), *whole.shape[2:]), whole.dtype)
                pieces = np.split(np.concatenate([values, rest]), 2 * world)
                expected += [pieces[rank], pieces[2 * world - 1 - rank]]
            assert np.array_equal(np.asarray(part[name]), np.concatenate(expected)[None]), name
            assert type(part[name]) is type(batch[name])
            assert part[name].dtype == batch[name].dtype


def test_documents_that_can_not_be_cut() -> None:
    ids = np.array([[1, 1, 2, 0]], np.int32)
    with pytest.raises(ConfigError, match="segment_ids"):
        context_parallel({"tokens": ids}, 0, 2, "per-document")
    with pytest.raises(ConfigError, match="loss_mask"):
        context_parallel({"segment_ids": ids, "targets": ids}, 0, 2, "per-document")
    empty = context_parallel({"segment_ids": ids * 0, "tokens": ids}, 1, 2, "per-document")
    assert empty["tokens"].shape == (1, 0)
    assert empty["cu_seqlens_padded"].tolist() == [0]
    by_hand = context_parallel({"segment_ids": ids, "tokens": ids * 5}, 1, 2, "per-document")
    assert by_hand["tokens"].tolist() == [[5, 0, 0, 0]]  # [5, 5, 0, 0] and [10, 0, 0, 0], pieces 1 and 2


PEERS = """
import os, sys, torch, torch.distributed as dist
from penstock.errors import ConfigError
from penstock.load.torch import broadcast
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
made = {"tokens": torch.arange(6).view(2, 3).t(), "keys": ["a", "b"], "mask": torch.tensor([True, False])}
batch = broadcast(made if rank == 0 else None)
assert list(batch) == ["tokens", "keys", "mask"], batch
assert torch.equal(batch["tokens"], made["tokens"]) and batch["keys"] == ["a", "b"]
assert torch.equal(batch["mask"], made["mask"]) and batch["mask"].dtype == torch.bool
try:
    broadcast(None)
except ConfigError as error:
    print("refused", rank)
dist.destroy_process_group()
"""


def test_a_batch_reaches_all_peers(tmp_path: Any) -> None:
    command = [sys.executable, "-c", PEERS]
    started = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meet")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [one.communicate(timeout=300)[0] for one in started]
    assert [one.returncode for one in started] == [0, 0]
    assert said == ["refused 0\n", "refused 1\n"]
