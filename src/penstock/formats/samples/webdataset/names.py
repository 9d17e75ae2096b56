"""Names of tar members: which of them count, and what of a name is the sample's key and what its part."""

from __future__ import annotations

import re

from penstock.formats.samples.leftovers import LEFTOVER_NAMES, is_leftover

# A folder part does not reach across a line end, as in the original; without a match there, an earlier slash may do.
_KEY_AND_PART = re.compile(r"((?:.*/)?[^.]+)\.([^/]*)\Z")
_META = re.compile(r"__[^/]*__(?:/|\n?\Z)")


def split_name(name: str, *, leftovers: bool = False) -> tuple[str, str] | None:
    """`(key, part)` of a member's name; None for a member that does not count.

    The key ends before the first dot after the last slash: `d.v2/a.b.txt` is `("d.v2/a", "b.txt")`. Members of a
    folder `__…__` at the top are notes of the tool that packed the shard. Leftovers (see `leftovers`) don't count
    either, except with `leftovers`, which is Energon's rule.
    """
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot > base and not name.startswith("__") and "\n" not in name and not name.endswith(LEFTOVER_NAMES):
        return name[:dot], name[dot + 1 :]
    if not leftovers and is_leftover(name):
        return None
    found = _KEY_AND_PART.match(name)
    if found is None or _META.match(name):
        return None
    return found[1], found[2]
