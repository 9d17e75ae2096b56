"""One dataset as output of `pack`: its writer takes each part, or its store joins them."""

from __future__ import annotations

from penstock.abc import Writer
from penstock.prepare.tokens.encode import Books, Encoding
from penstock.prepare.tokens.oracle import check_probes
from penstock.work.parts import PartName, read_part
from penstock.work.tokens.assemble import append_range, as_parts
from penstock.work.tokens.join import PartRange
from penstock.work.tokens.one import OneFile


def take_parts(encoding: Encoding, books: Books, writer: Writer, joined: OneFile | None) -> list[PartName]:
    """Encode what is missing; the writer takes all parts in their turn, unless they are to be joined.

    Raises:
        PrepareError: a part that another run made is not what the reference gives.
    """
    folder, width, parts = encoding.work.parts, encoding.material.spec.token_bytes, list[PartName]()
    for name, is_new in encoding.run(books):
        parts.append(name)
        reference = None if is_new else encoding.reference
        if joined is None:
            meta = append_range(as_parts(writer), folder, PartRange(name, 0, name.documents), width)
        elif reference is not None:
            meta = read_part(folder.child(name.path), width)[0]
        else:
            continue
        if reference is not None:
            check_probes(reference, meta.probes, encoding.material.inputs)
    return parts
