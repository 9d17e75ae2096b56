"""What a conversion does with the EOS tokens in the data: nothing, unless it is requested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.types import IntArray

STAY = "Keep documents as they are, without --eos"


@dataclass(frozen=True, slots=True)
class EosRule:
    """Rule for the end of every document.

    Attributes:
        action: `"keep"` documents unchanged, `"add"` an id to each, or `"strip"` it from each.
        eos_id: the id; None if documents are kept.
        promised: id that, according to the caller, ends each document. It is recorded, so documents are checked for it.
        only_recorded: the id to strip is the recorded EOS id, which not every document ends with; other documents stay.

    Examples:
        >>> from penstock.convert import EosRule
        >>> rule = EosRule.of(("add", 0))
        >>> rule.action, rule.eos_id
        ('add', 0)
    """

    action: Literal["keep", "add", "strip"] = "keep"
    eos_id: int | None = None
    promised: int | None = None
    only_recorded: bool = False

    @classmethod
    def of(cls, given: Sequence[Any] | None) -> EosRule:
        """Make a rule from `("add", id)`, `("strip", id)` or None, or raise `ConfigError`."""
        if given is None:
            return cls()
        match tuple(given):
            case ("add" | "strip" as action, int() as eos_id) if 0 <= eos_id < 1 << 32 and eos_id is not True:
                return cls(action, eos_id)
            case _:
                raise ConfigError("unknown EOS rule", found=repr(given), expected='("add", id) or ("strip", id)')

    def known_after(self, before: int | None) -> int | None:
        """Return the id that ends every document afterwards, if known, from the one before."""
        return {"keep": before, "add": self.eos_id, "strip": None}[self.action]

    def require_sense(self, shown: str, before: int | None) -> None:
        """Raise `ConfigError` if the rule contradicts the data.

        Args:
            shown: name of the source in errors.
            before: id that is known to end every document of the source.

        Raises:
            ConfigError: an EOS id is to be added to documents that have one, or another one than theirs is to be
                removed.
        """
        if before is None or self.action == "keep" or (self.action == "strip" and self.eos_id == before):
            return
        raise ConfigError(
            "documents already have an EOS" if self.action == "add" else "documents end with a different EOS",
            path=shown,
            found=f"id {before} at the end of each",
            expected=None if self.action == "add" else f"id {self.eos_id}",
            hint=f"Keep them as they are, or strip it first: --eos strip {before}",
        )

    def apply(
        self, tokens: NDArray[Any], doc_lengths: IntArray, first_doc: int, shown: str
    ) -> tuple[NDArray[Any], IntArray]:
        """Apply the rule to a run of documents.

        Args:
            tokens: uint[n_tokens].
            doc_lengths: int64[n_docs].
            first_doc: number of the first document, for errors.
            shown: name of the source in errors.

        Returns:
            The tokens and lengths of the documents.

        Raises:
            ConfigError: a document already ends with the id to be added, or doesn't end with the one that is to be
                removed or was promised.
        """
        if self.action == "keep" and self.promised is None:
            return tokens, doc_lengths
        ends = np.cumsum(doc_lengths)
        last = np.maximum(ends - 1, 0)
        if self.action == "add":
            has_one = np.flatnonzero((doc_lengths > 0) & (tokens[last] == self.eos_id if len(tokens) else False))
            if len(has_one):
                raise ConfigError(
                    f"document {first_doc + int(has_one[0])} already ends with the EOS to add",
                    path=shown,
                    found=f"{len(has_one)} of {len(doc_lengths)} checked documents",
                    hint="Keep documents as they are, without --eos; or specify the EOS of the source with --eos-id",
                )
            return self._added(tokens, ends), doc_lengths + 1
        keeps = self.action == "keep"
        eos_id = self.promised if keeps else self.eos_id
        has_none = (doc_lengths == 0) | (tokens[last] != eos_id if len(tokens) else True)
        wrong = np.flatnonzero(has_none)
        if len(wrong) and not self.only_recorded:
            place = int(wrong[0])
            which = "given by --eos-id (eos_id=)" if keeps else "to strip"
            hint = "Omit --eos-id; if rows cut through documents, use --one-document" if keeps else STAY
            raise ConfigError(
                f"document {first_doc + place} doesn't end with the EOS {which}",
                path=shown,
                found=f"id {int(tokens[last[place]])}" if doc_lengths[place] else "no token",
                expected=f"id {eos_id}",
                hint=hint,
            )
        if keeps:
            return tokens, doc_lengths
        keep = np.ones(len(tokens), np.bool_)
        keep[last[~has_none]] = False
        return tokens[keep], doc_lengths - ~has_none

    def _added(self, tokens: NDArray[Any], ends: IntArray) -> NDArray[Any]:
        eos = np.min_scalar_type(self.eos_id or 0)
        longer = np.empty(len(tokens) + len(ends), np.promote_types(tokens.dtype, eos))
        is_eos = np.zeros(len(longer), np.bool_)
        is_eos[ends + np.arange(len(ends))] = True
        longer[is_eos] = self.eos_id
        longer[~is_eos] = tokens
        return longer
