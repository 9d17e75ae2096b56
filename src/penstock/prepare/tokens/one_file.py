"""One dataset as output of `pack`: its writer takes each part, or its store joins them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.abc import Writer
from penstock.engine.parts import PartName, read_part
from penstock.engine.shared import SharedWork
from penstock.engine.tokens.assemble import append_range, as_parts
from penstock.engine.tokens.join import PartRange
from penstock.engine.tokens.one import OneFile
from penstock.engine.tokens.shuffled import shuffled_parts
from penstock.order.permutation import GlobalOrder
from penstock.prepare.tokens.encode import Books, Encoding
from penstock.prepare.tokens.oracle import check_probes
from penstock.prepare.tokens.understand import Request
from penstock.store.place import Place

SHUFFLED = "shuffled"
"""In the folder of a plan: its parts in the order that is asked for."""


def take_parts(encoding: Encoding, books: Books, writer: Writer, joined: OneFile | None) -> list[PartName]:
    """Encode what is missing; the writer takes all parts in their turn, unless they are to be joined.

    Raises:
        PrepareError: a part that another run made is not what the reference gives.
    """
    folder, width, parts = encoding.work.parts, encoding.material.spec.token_bytes, list[PartName]()
    for name, is_new in encoding.run(books):
        parts.append(name)
        reference = None if is_new else encoding.reference
        if joined is None and encoding.request.shuffle is None:
            meta = append_range(as_parts(writer), folder, PartRange(name, 0, name.documents), width)
        elif reference is not None:
            meta = read_part(folder.child(name.path), width)[0]
        else:
            continue
        if reference is not None:
            check_probes(reference, meta.probes, encoding.material.inputs)
    return parts


def append_shuffled(encoding: Encoding, writer: Writer, parts: Sequence[PartName]) -> None:
    """Give a writer all documents in the order that is asked for."""
    folder, width = shuffled_place(encoding.request, encoding.work), encoding.material.spec.token_bytes
    for name in parts_in_order(encoding, parts):
        append_range(as_parts(writer), folder, PartRange(name, 0, name.documents), width)


def parts_in_order(encoding: Encoding, parts: Sequence[PartName]) -> Sequence[PartName]:
    """The parts of which the output is made: these, or those of the order that is asked for."""
    seed, width, work = encoding.request.shuffle, encoding.material.spec.token_bytes, encoding.work
    if seed is None:
        return parts
    into = shuffled_place(encoding.request, work)
    if encoding.reference is not None:  # nobody asks for texts of the parts that are made here
        for part in parts:
            probes = read_part(work.parts.child(part.path), width)[0].probes
            check_probes(encoding.reference, probes, encoding.material.inputs)
    # That of `penstock.shuffle`.
    order = GlobalOrder(sum(part.documents for part in parts), seed).order
    return shuffled_parts(work.parts, parts, into, order, width, encoding.executor)


def shuffled_place(request: Request, work: SharedWork) -> Place:
    """Where the parts are of which the output is made."""
    return work.parts if request.shuffle is None else work.place.child(SHUFFLED)
