"""Path patterns with `*`, `?`, `[…]` and alternatives `{a,b}`; a list of paths becomes a pattern with alternatives."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence

from penstock.errors import ConfigError, NotFound
from penstock.store._files import is_there

_ITEM = r"(?:\[[{},]\]|[^{},])*+"
_GROUP = re.compile(rf"(?<!\[)\{{({_ITEM}(?:,{_ITEM})++)\}}")
_COMMA = re.compile(r"(?<!\[),|,(?!\])")
_SPECIAL = re.compile(r"[*?\[{},]")
_BRACES = re.compile(r"[{},]")
_EXCLUDE_LIST = ".penstock.exclude.jsonl"


def is_pattern(path: str) -> bool:
    """Return whether a path may be a pattern; a file of that name may exist anyway."""
    return glob.has_magic(path) or _group(path) is not None


def alternatives(pattern: str) -> list[str]:
    """Return the alternatives of `{a,b}` in a pattern, in order, or the pattern itself if it has none."""
    found = _group(pattern)
    if found is None:
        return [pattern]
    return [f"{pattern[: found.start()]}{one}{pattern[found.end() :]}" for one in _COMMA.split(found[1])]


def _group(path: str) -> re.Match[str] | None:
    """Return the last `{a,b}` that isn't part of an existing name."""
    *_, found = (None, *_GROUP.finditer(path))
    named = found and path[: path.find("/", found.end()) % (len(path) + 1)]
    return None if named and is_there(named) else found


def from_working_directory(path: str) -> str:
    """Return a local path or pattern as an absolute one; neither links nor `..` after a name are resolved.

    Raises:
        NotFound: the path is relative, and the working directory was removed.
    """
    every = all_alternatives(path)
    if not path.startswith("/") and any(one.startswith("/") for one in every):
        return f"{{{','.join(_from_working_directory(one, in_pattern=True) for one in every)}}}"
    return _from_working_directory(path)


def all_alternatives(pattern: str) -> list[str]:
    """Return the combinations of all alternatives in a pattern."""
    several = alternatives(pattern)
    return several if len(several) == 1 else [one for each in several for one in all_alternatives(each)]


def _from_working_directory(path: str, *, in_pattern: bool = False) -> str:
    if not path or path.startswith("/"):
        return path
    try:
        above = os.getcwd()
    except FileNotFoundError:
        what, hint = "a relative path, but the working directory was deleted", "Use an absolute path"
        raise NotFound(what, path=path, hint=hint) from None
    first, slash, rest = path.partition("/")
    while first in (".", "..") and (slash or path == first):
        path, above = rest.lstrip("/"), above if first == "." else os.path.dirname(above)
        first, slash, rest = path.partition("/")
    if in_pattern or (is_pattern(path) and not is_there(os.path.join(above, path))):
        above = _SPECIAL.sub(r"[\g<0>]", above)
    return os.path.join(above, path) if path else above


def folder_above(pattern: str) -> str:
    """Return the folder above all matches of a pattern."""
    found = _SPECIAL.search(pattern)
    return os.path.dirname(pattern[: found.start()] if found else pattern)


def last_part(path: str) -> str:
    """Return the part after the last slash, or for several paths the part after their common folder."""
    above = folder_above(path) if _group(path) else os.path.dirname(path)
    return path[len(above) :].lstrip("/")


def pattern_of(paths: Sequence[str | os.PathLike[str]]) -> str:
    """Return one path for several paths, URLs and patterns; a single one is returned unchanged.

    Raises:
        ConfigError: `paths` is empty, has an exclude list, or URLs without a common bucket or host.
        NotFound: one of several local paths doesn't exist.
    """
    if not paths:
        raise ConfigError("no path to open", hint="Pass files, folders or patterns")
    if len(paths) == 1:
        return os.fspath(paths[0])
    require_no_lists(paths)
    every = [_bare(one) for path in paths for one in _meant(os.fspath(path))]
    common = _same([one.split("/")[:-1] for one in every])
    if any("://" in one for one in every) and len(common) < len(("s3:", "", "bucket")):
        raise ConfigError(
            "paths in different stores",
            hint="Copy them to one store, or convert each one separately and merge the results",
        )
    above = "".join(f"{part}/" for part in common)
    return f"{above}{{{','.join(one[len(above) :] for one in every)}}}"


def require_no_lists(paths: Iterable[object]) -> None:
    """Raise `ConfigError` if one of several files is an exclude list, which a pattern of the shell matches too."""
    for path in paths:
        if isinstance(path, str | os.PathLike) and os.fspath(path).endswith(_EXCLUDE_LIST):
            hint = "Omit it. If the shell expanded a pattern, quote the pattern, and it matches only data"
            raise ConfigError("this file is an exclude list, not data", path=os.fspath(path), hint=hint)


def _meant(path: str) -> list[str]:
    """Return paths for use in a pattern; the name of an existing file is escaped."""
    if is_there(path):
        return [_SPECIAL.sub(r"[\g<0>]", path)]
    several = alternatives(path)
    if len(several) == 1 and not (is_pattern(path) or "://" in path or is_there(f"{path}.idx")):
        raise NotFound("no such file or folder", path=path, hint="Check the path")
    return several if len(several) > 1 else [_BRACES.sub(r"[\g<0>]", path)]


def _same(paths: list[list[str]]) -> list[str]:
    least, most = min(paths), max(paths)
    count = next((at for at, both in enumerate(zip(least, most, strict=False)) if both[0] != both[1]), None)
    return least if count is None else least[:count]


def _bare(path: str) -> str:
    return path.rstrip("/") or path
