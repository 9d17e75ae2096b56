"""Keyed bijection on `[0, n)` by arithmetic: nothing is stored, and places are computed independently.

`feistel-1`, for n > 64: write x as `left · b + right`, where b = ⌈√n⌉ and a·b is the smallest multiple of b
that is not below n (a one more if both were odd, because otherwise all permutations are even). Eight times,
alternately, a hash of one half and a round key is added to the other half: `left += F(right) mod a`, then
`right += F(left) mod b`. That is a bijection on `[0, a·b)` for any F. A result of n or more is permuted again
until it is below n (cycle walking); fewer than one in √n is.

For n ≤ 64 a Feistel network reaches too few of the n! permutations, so they are computed by sorting: place i has
the i-th smallest of n hashes.

The vectorised and the scalar functions give equal outputs. Memory is O(1): arrays are processed in pieces of
8,192 places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import as_indices, as_position, as_positions
from penstock._digest import derive_key
from penstock._kinds import is_lane_stream, is_stream
from penstock.errors import ConfigError
from penstock.types import IntArray

VERSION = "feistel-1"
MAX_SIZE = 1 << 62

ROUNDS = 8
SORTED_UP_TO = 64
PIECE = 8192  # places at a time: the working arrays stay in a core's cache

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
HASH_1 = 0xD6E8FEB86659FD93
HASH_2 = 0xA0761D6478BD642F

Keys: TypeAlias = "int | NDArray[np.uint64]"
"""One 64-bit key for all values, or uint64[k] with one for each."""

U64Array: TypeAlias = NDArray[np.uint64]


def permute(values: IntArray, n: int, keys: Keys) -> IntArray:
    """Return int64[k]: the image of each of `values` under the permutation of `[0, n)` with its key.

    Args:
        values: int64[k], each in `[0, n)`; not checked.
        n: size of the domain, at most 2^62.
        keys: one key, or uint64[k].
    """
    return _in_pieces(values, n, keys, inverse=False)


def unpermute(values: IntArray, n: int, keys: Keys) -> IntArray:
    """Return int64[k]: the inverse of `permute`, with the same arguments."""
    return _in_pieces(values, n, keys, inverse=True)


def permute_one(value: int, n: int, key: int) -> int:
    """Return `permute` for one value, in Python integers."""
    if n <= SORTED_UP_TO:
        return _sorted_places_one(n, key)[value]
    a, b = _shape(n)
    keys = [_mix_one(key + (i + 1) * GOLDEN) for i in range(ROUNDS)]
    while True:
        left, right = divmod(value, b)
        for i in range(0, ROUNDS, 2):
            left = (left + (_hash_one(right, keys[i]) * a >> 32)) % a
            right = (right + (_hash_one(left, keys[i + 1]) * b >> 32)) % b
        value = left * b + right
        if value < n:
            return value


def subkeys(key: Keys, counters: IntArray) -> U64Array:
    """Return uint64[k]: a key for each counter (epoch, lane, window, …), hashed from its key."""
    base = np.uint64(key) if isinstance(key, int) else key
    return _mix(_mix(counters.astype(np.uint64) * np.uint64(GOLDEN) + np.uint64(HASH_1)) ^ base)


def subkey(key: int, counter: int) -> int:
    return _mix_one(_mix_one(counter * GOLDEN + HASH_1) ^ key)


@dataclass(frozen=True, slots=True)
class GlobalOrder:
    """Order that permutes all samples in each epoch, by (seed, epoch).

    Attributes:
        size: number of samples, 1 to 2^62.
        seed: any integer.

    Examples:
        >>> import numpy as np
        >>> from penstock.order import GlobalOrder
        >>> order = GlobalOrder(5, seed=0)
        >>> indices = order.order(np.arange(5))
        >>> sorted(indices.tolist())
        [0, 1, 2, 3, 4]
        >>> order.inverse(indices, 0)
        array([0, 1, 2, 3, 4])
    """

    size: int
    seed: int
    version: str = field(default=VERSION, init=False)
    _base: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_size(self.size)
        object.__setattr__(self, "_base", derive_key(self.seed, "shuffle"))

    def order(self, positions: IntArray, /) -> IntArray:
        """Return int64[k]: the index in `[0, size)` at each position."""
        positions = as_positions(positions)
        if positions.size == 0:
            return positions
        first, last = int(positions.min()) // self.size, int(positions.max()) // self.size
        if first == last:
            return permute(positions - first * self.size, self.size, self._key(first))
        epochs = positions // self.size
        return permute(positions - epochs * self.size, self.size, subkeys(self._base, epochs))

    def order_one(self, position: int, /) -> int:
        """Return the index at `position`."""
        epoch, place = divmod(as_position(position), self.size)
        return permute_one(place, self.size, self._key(epoch))

    def inverse(self, indices: IntArray, epoch: int, /) -> IntArray:
        """Return int64[k]: the positions of `indices` in `epoch`."""
        epoch = as_position(epoch)
        return unpermute(as_indices(indices, self.size), self.size, self._key(epoch)) + epoch * self.size

    def params(self) -> dict[str, Any]:
        """Return all parameters of the order except `size`, as plain JSON."""
        return {"mode": "global", "seed": self.seed}

    def _key(self, epoch: int) -> int:
        return subkey(self._base, epoch)


def size_of(source: Any) -> int:
    """Return `len(source)`; raise `ConfigError` for a stream, which has no end."""
    if is_stream(source) or is_lane_stream(source):
        raise ConfigError(
            "a stream is endless and already has an order",
            found=f"a {type(source).__name__}",
            expected="a source",
            hint="Pass its source instead",
        )
    return len(source)


def check_size(size: int) -> None:
    """Raise an error for a source without samples, or with too many to number."""
    if size < 1:
        raise ConfigError("an empty source can't be ordered", found=f"{size} samples", expected="at least 1")
    if size > MAX_SIZE:
        raise ConfigError("too many samples to order", found=size, expected=f"at most {MAX_SIZE}")


def _shape(n: int) -> tuple[int, int]:
    b = math.isqrt(n - 1) + 1
    a = -(-n // b)
    return (a + 1 if a & b & 1 else a), b


def _mix_one(x: int) -> int:
    x &= MASK
    x = ((x ^ (x >> 30)) * MIX_1) & MASK
    x = ((x ^ (x >> 27)) * MIX_2) & MASK
    return x ^ (x >> 31)


def _mix(x: U64Array) -> U64Array:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(MIX_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(MIX_2)
    return x ^ (x >> np.uint64(31))


def _hash_one(half: int, key: int) -> int:
    x = (half * HASH_1 + key) & MASK
    return (((x ^ (x >> 32)) * HASH_2) & MASK) >> 32


def _in_pieces(values: IntArray, n: int, keys: Keys, *, inverse: bool) -> IntArray:
    out = np.empty(values.shape, dtype=np.int64)
    for start in range(0, values.size, PIECE):
        piece = slice(start, start + PIECE)
        some = keys if isinstance(keys, int) else keys[piece]
        if n <= SORTED_UP_TO:
            out[piece] = _sorted(values[piece], n, some, inverse)
        else:
            out[piece] = _walk(values[piece].astype(np.uint64), n, some, inverse)
    return out


def _walk(values: U64Array, n: int, keys: Keys, inverse: bool) -> IntArray:
    shape = _shape(n)
    run = _backward if inverse else _forward
    out = run(values, shape, _round_keys(keys))
    outside = np.flatnonzero(out >= n)
    while outside.size:
        again = run(out[outside], shape, _round_keys(keys if isinstance(keys, int) else keys[outside]))
        out[outside] = again
        outside = outside[again >= n]
    return out.view(np.int64)


def _round_keys(keys: Keys) -> list[Any]:
    if isinstance(keys, int):
        return [np.uint64(_mix_one(keys + (i + 1) * GOLDEN)) for i in range(ROUNDS)]
    return [_mix(keys + np.uint64((i + 1) * GOLDEN & MASK)) for i in range(ROUNDS)]


def _forward(values: U64Array, shape: tuple[int, int], keys: list[Any]) -> U64Array:
    a, b = np.uint64(shape[0]), np.uint64(shape[1])
    left = values // b
    right = values - left * b
    moved, spare = np.empty_like(left), np.empty_like(left)
    for i in range(0, ROUNDS, 2):
        _add(left, _hash(right, keys[i], a, moved, spare), a, spare)
        _add(right, _hash(left, keys[i + 1], b, moved, spare), b, spare)
    left *= b
    left += right
    return left


def _backward(values: U64Array, shape: tuple[int, int], keys: list[Any]) -> U64Array:
    a, b = np.uint64(shape[0]), np.uint64(shape[1])
    left = values // b
    right = values - left * b
    moved, spare = np.empty_like(left), np.empty_like(left)
    for i in range(ROUNDS - 2, -2, -2):
        _add(right, np.subtract(b, _hash(left, keys[i + 1], b, moved, spare), out=moved), b, spare)
        _add(left, np.subtract(a, _hash(right, keys[i], a, moved, spare), out=moved), a, spare)
    left *= b
    left += right
    return left


def _hash(half: U64Array, key: Any, size: np.uint64, out: U64Array, spare: U64Array) -> U64Array:
    """Return uint64[k] in `[0, size)`: `_hash_one` scaled down, stored in `out`."""
    np.multiply(half, np.uint64(HASH_1), out=out)
    out += key
    np.right_shift(out, np.uint64(32), out=spare)
    out ^= spare
    out *= np.uint64(HASH_2)
    out >>= np.uint64(32)
    out *= size
    out >>= np.uint64(32)
    return out


def _add(half: U64Array, moved: U64Array, size: np.uint64, spare: U64Array) -> None:
    """Compute `half = (half + moved) mod size` in place; neither may be above `size`."""
    half += moved
    np.subtract(half, size, out=spare)  # wraps to a huge number if smaller than `size`
    np.minimum(half, spare, out=half)


def _sorted_places_one(n: int, key: int) -> list[int]:
    hashes = [_mix_one(key ^ ((i + 1) * GOLDEN & MASK)) for i in range(n)]
    return sorted(range(n), key=hashes.__getitem__)


def _sorted(values: IntArray, n: int, keys: Keys, inverse: bool) -> IntArray:
    counters = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    if isinstance(keys, int):
        distinct, which = np.array([keys], dtype=np.uint64), np.zeros(values.size, dtype=np.intp)
    else:
        distinct, which = np.unique(keys, return_inverse=True)
    places = np.argsort(_mix(distinct[:, None] ^ counters), axis=1, kind="stable")
    if inverse:
        places = np.argsort(places, axis=1)
    return places[which, values]
