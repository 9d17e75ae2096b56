"""The writer of a packed dataset, which takes parts in input order; and what bad lines are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock._kinds import TokenParts
from penstock.abc import Writer
from penstock.engine.parts import BadLine, Probe
from penstock.errors import PrepareError
from penstock.formats import get_format
from penstock.prepare.tokens.columns import COLUMN, ColumnParts
from penstock.prepare.tokens.engines import load_reference
from penstock.prepare.tokens.inputs import TABLES, InputFile
from penstock.prepare.tokens.oracle import disagreement
from penstock.prepare.tokens.tokenizer import TokenizerSpec
from penstock.store.place import Place


def differs(spec: TokenizerSpec, probes: Sequence[Probe]) -> tuple[int, str] | None:
    """The input of a text that parts remember, of which the tokenizer's own library gives other ids, and where."""
    for probe in probes:
        difference = disagreement(load_reference(spec), [probe])
        if difference is not None:
            return probe.file, difference
    return None


def create_writer(to: str, place: Place, spec: TokenizerSpec, recorded: Mapping[str, Any], **how: Any) -> Writer:
    """The writer of a packed dataset.

    Args:
        to: its format.
        place: where it goes.
        spec: the tokenizer.
        recorded: what the side file says of the data.
        how: `overwrite`.
    """
    options = writer_options(to, spec, recorded)
    if to == "mds":
        options["columns"] = {COLUMN: f"ndarray:uint{8 * options.pop('token_bytes')}"}
    chosen = get_format(to)
    writer = chosen.create(place.store, place.path, options, overwrite=bool(how.get("overwrite")))
    by_document = to == "mds" or (chosen.traits.tokens and not isinstance(writer, TokenParts))
    return ColumnParts(writer, spec.token_bytes) if by_document else writer


def writer_options(to: str, spec: TokenizerSpec, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the writer of a token format, and what is recorded of the data."""
    options: dict[str, Any] = {"token_bytes": spec.token_bytes, "eos_id": spec.eos_id, "tokenizer": spec.name}
    options |= recorded
    options["options"] = {**options.get("options", {}), **bos_of(spec)}
    if to == "megatron":
        # Its dtype follows from the vocabulary by a rule of its own, not from the width of the parts.
        options["vocab_size"] = spec.num_ids
    return options


def bos_of(spec: TokenizerSpec) -> dict[str, int]:
    """The id that the tokenizer puts before every text, as side files record it."""
    before = () if spec.around is None else spec.around[0]
    return {"bos_id": before[0]} if len(before) == 1 else {}


def bad_line(one: InputFile, bad: BadLine, before: int | None) -> PrepareError:
    """The error for a line that gives no document.

    Args:
        one: the input.
        bad: the line, by its number in its piece.
        before: lines of the input before the piece; None where that is not known here.
    """
    unit = "row" if one.kind in TABLES else "line"
    number = f"{unit} {before + bad.line + 1}" if before is not None else f"a {unit}"
    return PrepareError(
        bad.reason if one.kind == "whole" else f"{number}: {bad.reason}",
        path=one.path,
        offset_bytes=bad.offset_bytes if one.compression == "none" and one.kind == "lines" else None,
        hint="Fix it, or skip and list invalid lines: on_error='skip' (--on-error skip)",
    )
