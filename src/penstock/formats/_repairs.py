"""Repairs of a dataset: a table per format, and the one function that lists or makes them and keeps copies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from penstock.store.base import Store
from penstock.store.put import back_up
from penstock.types import Action, Finding, Manifest, OpenOptions


@dataclass(frozen=True, slots=True)
class Damaged:
    """A dataset to repair; `findings` are those that the repair is for, and `write` makes it."""

    store: Store
    path: str
    options: OpenOptions
    findings: Sequence[Finding]
    write: bool


@dataclass(frozen=True, slots=True)
class Recorded:
    """The side file at `path`, even if the data differs from it, and the counts of the repaired dataset."""

    path: str
    manifest: Manifest | None
    unit: str
    num_samples: int
    num_tokens: int | None = None

    def kept(self, store: Store, *, write: bool) -> str:
        """Return the end of an action's text if only the side file tells what is lost; keep a copy if `write`."""
        if not store.exists(self.path):
            return ""
        stated, known = "belongs to other data", self.manifest
        if known is not None:
            if known.num_samples == self.num_samples and self.num_tokens in (None, known.num_tokens):
                return ""
            counted = self.num_tokens is not None and known.num_tokens is not None
            tokens = f" with {known.num_tokens:,} tokens" if counted else ""
            stated = f"counts {known.num_samples:,} {self.unit}{tokens}"
        return f"; the old side file {stated}" + (f", and is kept as {back_up(store, self.path)}" if write else "")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A file to write, and its old version to keep.

    Attributes:
        code, path, what: as in `penstock.types.Action`.
        make: writes the file; may return a replacement for `what`.
        old: name of the old file in the text; None if `what` mentions the copy.
        recorded: the side file, if it may count other samples.
        keep: copies the old file and returns the path of the copy; empty if there is nothing to keep.
    """

    code: str
    path: str
    what: str
    make: Callable[[], str | None]
    old: str | None = "the old one"
    recorded: Recorded | None = None
    keep: Callable[[Store, str], str] = lambda store, path: back_up(store, path) if store.exists(path) else ""

    def action(self, store: Store, *, write: bool) -> Action:
        more = "" if self.recorded is None else self.recorded.kept(store, write=write)
        if not write:
            return Action(self.code, self.path, self.what + more)
        copy = self.keep(store, self.path)
        kept = f"; {self.old} is kept as {copy}" if copy and self.old is not None else ""
        return Action(self.code, self.path, f"{self.make() or self.what}{kept}{more}", done=True)


@dataclass(frozen=True, slots=True)
class Repair:
    """One kind of repair of a format.

    Attributes:
        plan: yields files to write, and actions that are done already or impossible.
        codes: codes of the findings that it is for; by default, of all errors.
        always: plan it without findings too.
    """

    plan: Callable[[Damaged], Iterable[Rewrite | Action]]
    codes: Collection[str] | None = None
    always: bool = False


def repaired_by(
    *repairs: Repair, at: Callable[[Store, str], tuple[Store, str]] = lambda store, path: (store, path)
) -> Callable[..., list[Action]]:
    """Return the method `repair` of a format; `at` returns the place of a dataset that the user named."""

    def repair(
        store: Store, path: str, options: OpenOptions, findings: Sequence[Finding], *, write: bool
    ) -> list[Action]:
        store, path = at(store, path)
        actions: list[Action] = []
        for one in repairs:
            codes = one.codes
            found = [each for each in findings if (each.severity == "error" if codes is None else each.code in codes)]
            if found or one.always:
                planned = one.plan(Damaged(store, path, options, found, write))
                actions += (each if isinstance(each, Action) else each.action(store, write=write) for each in planned)
        return actions

    return repair


def as_folder(store: Store, path: str) -> tuple[Store, str]:
    """Return a store, and the path of a folder without a final slash."""
    return store, path.rstrip("/") or path


def not_repaired(code: str, path: str, side_path: str) -> Action:
    """Return the action for data that differs from its side file, which proves nothing about a repair then."""
    what = f"not repaired: the data differs from {side_path}. Restore the data, or move that file away first"
    return Action(code, path, what, possible=False)
