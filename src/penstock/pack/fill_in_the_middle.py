"""Documents rearranged for filling in the middle: a part is moved to the end, after its context.

| form | document |
|---|---|
| unchanged | `text` EOS |
| prefix, suffix, middle | PRE `prefix` SUF `suffix` MID `middle` EOS |
| suffix, prefix, middle | PRE SUF `suffix` MID `prefix` `middle` EOS |

The form of a document and its cuts are hashes of seed and document number, without sequential state: any token
can be read independently, and a resumed run reads the same. Both cuts are uniform over the borders of the
document's tokens, except EOS and BOS; parts may be empty. Forms and ids are those of the paper on filling in the
middle (Bavarian et al. 2022) and of StarCoder.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._access import capability, excluded_below
from penstock._arrays import as_index, as_indices, column
from penstock._digest import derive_key
from penstock._kinds import FormerRule, RuleChange, require_tokens
from penstock._secrets import logger
from penstock._tokens import require_no_planes
from penstock.abc import TokenSource
from penstock.errors import ConfigError
from penstock.node.blocks import preferred_mode
from penstock.node.over import Finder
from penstock.node.tokens import TokensOver
from penstock.types import Batch, IntArray, Manifest, Sample, TokenArray

_log = logger(__name__)
VERSION = "fill-in-the-middle-1"

_ADDED = 3
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MOST_LOOKED_AT = 1 << 16
_AS_IT_WAS, _PSM, _SPM = 0, 1, 2


class FillInTheMiddle(TokensOver):
    """Token source that rearranges a share of the documents for fill-in-the-middle training.

    Pass it to a packer such as `Chunk` or `BestFit`. A rearranged document has three more tokens. A warning names the
    first document that already contains one of the three tokens, because such a document looks rearranged. Memory: 9
    bytes per document once document boundaries are needed, in addition to those of the source.

    Args:
        source: token source.
        rate: share of documents to rearrange, 0 to 1.
        spm_rate: share of the rearranged documents that begin with the suffix, 0 to 1.
        prefix_id, middle_id, suffix_id: ids that precede the three parts.
        bos_id: if a document's first token has this id, it stays first. By default the id recorded by `pack`, if any;
            None treats all documents alike.
        seed: any integer.

    Raises:
        ConfigError: a rate is outside 0 to 1; ids are equal, too large for the source, or its EOS id; or the source has
            planes or an exclude list.
        TypeError: an id or the seed isn't an integer.

    Examples:
        >>> import penstock as ps
        >>> code = ps.open("code.pbin")
        >>> fim = ps.FillInTheMiddle(code, rate=0.5, prefix_id=2001, middle_id=2002, suffix_id=2003, seed=0)
        >>> len(fim), code.num_tokens, fim.num_tokens
        (4, 26, 29)
        >>> windows = ps.Chunk(16, labels="shift")(fim)
    """

    kind, version = "fill-in-the-middle", VERSION
    had_eos_borders = False
    source: TokenSource

    def __init__(
        self,
        source: TokenSource,
        *,
        rate: float,
        spm_rate: float = 0.5,
        prefix_id: int,
        middle_id: int,
        suffix_id: int,
        bos_id: int | Literal["recorded"] | None = "recorded",
        seed: int,
    ) -> None:
        require_tokens(source, "FillInTheMiddle")
        for name, share in (("rate", rate), ("spm_rate", spm_rate)):
            if not (isinstance(share, int | float) and 0 <= share <= 1):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"{name} must be a fraction", found=share, expected="0 to 1")
        given = {"prefix_id": prefix_id, "middle_id": middle_id, "suffix_id": suffix_id}
        ids = {name: operator.index(one) for name, one in given.items()}
        most = int(np.iinfo(source.dtype).max)
        for name, one in ids.items():
            if not 0 <= one <= most or one == source.eos_id:
                what = f"{name} is not a valid token inside a document"
                raise ConfigError(what, found=one, expected=f"0 to {most}, and not EOS ({source.eos_id})")
        if len(set(ids.values())) < len(ids):
            raise ConfigError("the three tokens must differ", found=", ".join(f"{n}={v}" for n, v in ids.items()))
        require_no_planes(source, "rearranged documents")
        if excluded_below(source):
            hint = "Remove the excluded samples first: `penstock purge`"
            raise ConfigError("rearranged documents can't have an exclude list", hint=hint)
        super().__init__(source)
        self.rate, self.spm_rate, self.seed = float(rate), float(spm_rate), operator.index(seed)
        self.prefix_id, self.middle_id, self.suffix_id = ids.values()
        self._recorded_bos = _recorded_bos(source)
        self.bos_id = self._recorded_bos if bos_id == "recorded" else bos_id
        if self.bos_id is not None and (not 0 <= self.bos_id <= most or self.bos_id in ids.values()):
            expected = f"0 to {most}, and none of the three tokens"
            raise ConfigError("bos_id can't begin a document", found=self.bos_id, expected=expected)
        self._has_warned = False

    def identity(self) -> tuple[Any, ...]:
        bos = {} if self.bos_id is None else {"bos_id": self.bos_id}
        return (VERSION, self.source.fingerprint, {**self.shown(), **bos})

    @property
    def preferred_mode(self) -> str:
        """Default mode of `Shuffle`: that of the source."""
        return preferred_mode(self.source)

    @cached_property
    def _forms(self) -> NDArray[np.uint8]:
        return self._forms_of(np.arange(len(self)))

    @cached_property
    def doc_starts(self) -> IntArray:
        starts = self.source.doc_starts.astype(np.int64)
        starts[1:] += np.cumsum((self._forms != _AS_IT_WAS) * _ADDED)
        starts.flags.writeable = False
        return starts

    def __getitem__(self, index: int, /) -> Sample:
        index = as_index(index, len(self))
        return {**self.source[index], "tokens": self._document(index)}

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the documents at `indices` (int64[k]); a list of arrays if their lengths differ."""
        chosen = as_indices(indices, len(self)).tolist()
        return {"tokens": column([self._document(index) for index in chosen])}

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Return the tokens `[start, stop)`, uint[stop - start]. Rearranged documents are read whole."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens [{start}, {stop}) are not all in [0, {self.num_tokens})")
        return self._read(start, stop)

    def find(self, finder: Finder) -> IntArray:
        return finder.indices(self.source)

    def own(self) -> dict[str, Any]:
        return {**self.shown(), **self._bos}

    def shown(self) -> dict[str, Any]:
        names = ("rate", "spm_rate", "prefix_id", "middle_id", "suffix_id", "seed")
        return {name: getattr(self, name) for name in names}

    def former_rule(self) -> FormerRule | None:
        """Return the rule that earlier versions used; see `penstock._kinds.HasFormerRule`."""
        if not self._bos:
            return None
        if self.bos_id is None:
            return FormerRule({}, ("bos_id",), None)
        text = "FillInTheMiddle keeps the BOS token of a document first; version 0.2.0 moved it with the prefix"
        keep = "To keep the former rule: FillInTheMiddle(bos_id=None)"
        change = RuleChange("bos-first", text, "BOS moves", "BOS stays first", keep, self._moved_bos)
        return FormerRule({}, ("bos_id",), change)

    def _moved_bos(self) -> bool:
        """Return whether a rearranged document begins with BOS; checks at most 2^16 of them."""
        starts = self.source.doc_starts
        chosen = np.flatnonzero((self._forms != _AS_IT_WAS) & (np.diff(starts) > 0))
        chosen = chosen[:: -(-len(chosen) // _MOST_LOOKED_AT) or 1]
        return bool((self.source.gather(np.asarray(starts[chosen], np.int64), 1) == self.bos_id).any())

    @property
    def _bos(self) -> dict[str, int | None]:
        """BOS id in the recipe; empty if none is recorded or passed."""
        return {} if self.bos_id is None and self._recorded_bos is None else {"bos_id": self.bos_id}

    def _hash(self, documents: NDArray[Any], what: str) -> NDArray[np.uint64]:
        """Return uint64[k]: a hash of seed, document and purpose."""
        key = np.uint64(derive_key(self.seed, VERSION, what))
        with np.errstate(over="ignore"):
            mixed = documents.astype(np.uint64) * np.uint64(_GOLDEN) + key
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_MIX_1)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_MIX_2)
            return mixed ^ (mixed >> np.uint64(31))

    def _forms_of(self, documents: NDArray[Any]) -> NDArray[np.uint8]:
        """Return uint8[k]: the form of each document."""
        chosen, begins = (
            (self._hash(documents, what) >> np.uint64(11)) * 2.0**-53 < share
            for what, share in (("form", self.rate), ("suffix first", self.spm_rate))
        )
        return np.where(chosen, np.where(begins, _SPM, _PSM), _AS_IT_WAS).astype(np.uint8)

    def _document(self, index: int) -> TokenArray:
        start, stop = self.source.doc_starts[index : index + 2].tolist()
        stored, number = self.source.tokens(start, stop), np.array([index])
        form = int(self._forms_of(number)[0])
        if form == _AS_IT_WAS:
            return stored
        self._look_at(index, stored)
        ends = len(stored) > 0 and self.eos_id is not None and int(stored[-1]) == self.eos_id
        body = len(stored) - ends
        begin = int(body > 0 and int(stored[0]) == self.bos_id)
        first, second = sorted(
            begin + int(self._hash(number, what)[0]) % (body - begin + 1) for what in ("one cut", "another cut")
        )
        prefix, middle, suffix = stored[begin:first], stored[first:second], stored[second:body]
        before, between, behind = (
            np.array([one], self.dtype) for one in (self.prefix_id, self.middle_id, self.suffix_id)
        )
        if form == _PSM:
            parts = [before, prefix, behind, suffix, between, middle]
        else:
            parts = [before, behind, suffix, between, prefix, middle]
        return np.concatenate([stored[:begin], *parts, stored[body:]])

    def _look_at(self, index: int, stored: TokenArray) -> None:
        """Warn about a document that contains one of the three tokens."""
        if self._has_warned:
            return
        held = (stored == self.prefix_id) | (stored == self.middle_id) | (stored == self.suffix_id)
        if held.any():
            self._has_warned = True
            what = (
                "document %d already contains the fill-in-the-middle token %d and looks split there; there may be more"
            )
            _log.warning(what, index, int(stored[int(held.argmax())]))

    def _read(self, start: int, stop: int) -> TokenArray:
        if start == stop:
            return self.source.tokens(0, 0)
        starts, of_source = self.doc_starts, self.source.doc_starts
        first = int(np.searchsorted(starts, start, side="right")) - 1
        last = int(np.searchsorted(starts, stop))
        parts: list[TokenArray] = []
        index = first
        while index < last:
            low = int(starts[index])
            if self._forms[index] != _AS_IT_WAS:
                parts.append(self._document(index)[max(0, start - low) : stop - low])
                index += 1
                continue
            end = index + 1  # a run of unchanged documents is one read
            while end < last and self._forms[end] == _AS_IT_WAS:
                end += 1
            shift = int(of_source[index]) - low
            parts.append(self.source.tokens(max(start, low) + shift, min(stop, int(starts[end])) + shift))
            index = end
        found = parts[0] if len(parts) == 1 else np.concatenate(parts)
        found.flags.writeable = False
        return found


def _recorded_bos(source: Any) -> int | None:
    """Return the BOS id that `pack` recorded; None if there is none, or sources differ."""
    manifest = capability(source, "manifest")
    if isinstance(manifest, Manifest):
        found = manifest.options.get("bos_id")
        return found if isinstance(found, int) else None
    ids = {_recorded_bos(child) for child in source.children().values()}
    return ids.pop() if len(ids) == 1 else None
