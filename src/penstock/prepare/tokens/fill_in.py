"""Fill-in-the-middle: texts that are split by character and rearranged before they are tokenized.

| form | tokens |
|---|---|
| as it was | `text` |
| prefix, suffix, middle | PRE `prefix` SUF `suffix` MID `middle` |
| suffix, prefix, middle | PRE SUF `suffix` MID `prefix` `middle` |

Which form a text gets and where it is split are hashes of a seed and the text: they don't depend on workers, order or
restarts. Both splits are uniform over its characters. Parts may be empty, and each is tokenized alone, like a model's
prompt later. Forms are those of `penstock.pack.FillInTheMiddle`, which splits by token.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._digest import derive_key
from penstock._naming import nearest
from penstock.errors import ConfigError
from penstock.prepare.tokens.engines import Encoded, Reference
from penstock.prepare.tokens.tokenizer import TokenizerSpec

VERSION = "fill-in-the-middle-text-1"

KNOWN = (
    ("<fim_prefix>", "<fim_middle>", "<fim_suffix>"),
    ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    ("<fim-prefix>", "<fim-middle>", "<fim-suffix>"),
    ("<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜fim▁hole｜>"),
    ("▁<PRE>", "▁<MID>", "▁<SUF>"),
)
"""Tokens before prefix, middle and suffix: of StarCoder, Qwen and CodeGemma, SantaCoder, DeepSeek, Code Llama."""

_Part = tuple[tuple[int, ...], bytes]
"""Tokens, and the text after them."""


@dataclass(frozen=True, slots=True)
class FillInOptions:
    """Share of the documents that are rearranged, and of these the share that begins with the suffix; 0 to 1.

    `tokens` come before prefix, middle and suffix; None: those of `KNOWN` that the tokenizer has.
    """

    rate: float
    spm_rate: float = 0.5
    seed: int = 0
    tokens: tuple[str, str, str] | None = None

    def recorded(self, prefix: str) -> dict[str, Any]:
        """Return the options by their names on the command line, after `prefix`."""
        options = {"fim-rate": self.rate, "fim-spm-rate": self.spm_rate, "fim-seed": self.seed}
        tokens = {} if self.tokens is None else {"fim-tokens": list(self.tokens)}
        return {prefix + name: value for name, value in {**options, **tokens}.items()}


@dataclass(frozen=True, slots=True)
class FillIn:
    """Rearranges texts. `around`: ids that the tokenizer puts before and after every text."""

    options: FillInOptions
    prefix_id: int
    middle_id: int
    suffix_id: int
    around: tuple[tuple[int, ...], tuple[int, ...]]

    def parts_of(self, text: bytes) -> list[_Part]:
        hashes = (xxhash.xxh3_128_digest(text, _key(self.options.seed) ^ place) for place in (0, 1))
        draws = np.frombuffer(b"".join(hashes), "<u8")
        chosen, is_spm = ((draws[:2] >> np.uint64(11)) * 2.0**-53).tolist()
        if not text or chosen >= self.options.rate:
            return [((), text)]
        characters = text.decode()
        first, second = sorted(int(draw) % (len(characters) + 1) for draw in draws[2:])
        prefix, middle, suffix = (
            part.encode() for part in (characters[:first], characters[first:second], characters[second:])
        )
        if is_spm < self.options.spm_rate:
            return [((self.prefix_id, self.suffix_id), suffix), ((self.middle_id,), prefix), ((), middle)]
        return [((self.prefix_id,), prefix), ((self.suffix_id,), suffix), ((self.middle_id,), middle)]

    def encode(self, encode: Callable[[list[bytes]], Encoded], texts: Sequence[bytes]) -> tuple[Encoded, set[int]]:
        """Return ids and lengths of texts, some of them rearranged, and the rows that contain one of the tokens.

        Such rows would look rearranged, so they get no ids, unless nothing is rearranged at all. `encode` returns the
        ids of unchanged texts.
        """
        cut = [self.parts_of(text) for text in texts]
        ids, lengths = encode([part for parts in cut for _, part in parts])
        ends = np.cumsum(lengths)
        marks = (self.prefix_id, self.middle_id, self.suffix_id) if self.options.rate else ()
        own = np.flatnonzero(np.isin(ids, marks))
        rows = np.repeat(np.arange(len(cut)), [len(parts) for parts in cut])
        held = set(rows[np.searchsorted(ends, own, side="right")].tolist())
        stops = ends.tolist()
        before, behind = self.around
        made: list[NDArray[np.uint32]] = []
        found = np.zeros(len(cut), np.int64)
        piece = start = 0
        for row, parts in enumerate(cut):
            document: list[Any] = []
            for tokens, _ in parts:
                stop = stops[piece]
                document += (
                    [tokens, ids[start + len(before) : stop - len(behind)]] if len(parts) > 1 else [ids[start:stop]]
                )
                piece, start = piece + 1, stop
            if row in held:
                continue
            if len(parts) > 1:
                document = [before, *document, behind]
            made += [np.asarray(one, np.uint32) for one in document]
            found[row] = sum(map(len, document))
        return (np.concatenate([*made, np.empty(0, np.uint32)]), found), held


@functools.lru_cache(maxsize=8)
def _key(seed: int) -> int:
    return derive_key(seed, VERSION)


def make_options(
    rate: float | None, spm_rate: float | None, seed: int | None, tokens: Sequence[str] | None
) -> FillInOptions | None:
    """Return the checked options of `pack`; None without a rate. Raises `ConfigError`."""
    rest = {"fim_spm_rate": spm_rate, "fim_seed": seed, "fim_tokens": tokens}
    given = [name for name, value in rest.items() if value is not None]
    if rate is None:
        if given:
            raise ConfigError(
                "this option only applies to fill-in-the-middle", found=given[0], hint="Add fim_rate= (--fim-rate)"
            )
        return None
    for name, share in (("fim_rate", rate), ("fim_spm_rate", spm_rate)):
        if share is not None and not 0 <= share <= 1:
            raise ConfigError(f"{name} must be a fraction", found=share, expected="0 to 1")
    named = None if tokens is None else tuple(tokens)
    if named is not None and (len(named) != 3 or len(set(named)) < 3):
        raise ConfigError(
            "fim_tokens needs three tokens",
            found=", ".join(named),
            expected="the tokens before prefix, middle and suffix",
        )
    return FillInOptions(float(rate), 0.5 if spm_rate is None else float(spm_rate), seed or 0, named)


def load_fill_in(options: FillInOptions, spec: TokenizerSpec, reference: Reference) -> FillIn:
    """Look up the tokens. Raises `ConfigError` if the tokenizer lacks one, or changes texts in other ways."""
    if spec.around is None:
        what, hint = "its post-processor does more than add tokens around the text", "Add --special-tokens none"
        raise ConfigError(what, path=spec.path, expected="text that can be split for fill-in-the-middle", hint=hint)
    tokens = options.tokens
    if tokens is None:
        tokens = next((some for some in KNOWN if all(reference.id_of(one) is not None for one in some)), None)
    if tokens is None:
        hint = "Specify them with fim_tokens= (--fim-tokens), or add them to the tokenizer"
        raise ConfigError("the tokenizer has no fill-in-the-middle tokens", path=spec.path, hint=hint)
    ids: list[int] = []
    for one in tokens:
        found = reference.id_of(one)
        if found is None or found == spec.eos_id:
            close = nearest(one, reference.added_tokens())
            what = f"the token {one!r} " + ("is not in the vocabulary" if found is None else "ends documents")
            raise ConfigError(what, path=spec.path, hint=f"Did you mean {close!r}?" if close else "See --fim-tokens")
        ids.append(found)
    prefix_id, middle_id, suffix_id = ids
    return FillIn(options, prefix_id, middle_id, suffix_id, spec.around)
