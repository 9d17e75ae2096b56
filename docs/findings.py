"""The table of findings, and a scan of the source for their codes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from penstock.cli._findings import FINDINGS

SOURCE = Path(__file__).parent.parent / "src" / "penstock"
_PREFIXES = dict.fromkeys(("fault", "Damage"), "flat-tokens.")
_CALLS = {"Finding", "Problem", "of_error", "warning", "_problem", "find_unlisted", "Check", *_PREFIXES}
_CODE = re.compile(r"(<format>|[a-z][a-z_-]*)(\.[a-z][a-z_-]*)+")
_PART = re.compile(r"[a-z][a-z_-]*")
_OWN_CALLS = {
    "jsonl": ("formats/jsonl", "problem"),
    "pbin": ("formats/tokens/pbin", "problem"),
    "megatron": ("formats/tokens/megatron", "_problem"),
    "flat-tokens": ("formats/tokens/flat_tokens", "fault"),
    "token-files": ("formats/tokens/folder", "_of_error"),
}
"""Format → folder, and the function there that puts the format's name before a code."""
_COMPUTED = {
    "flat-tokens.first_bit.clear_elsewhere": "formats/tokens/flat_tokens",
    "flat-tokens.first_bit.set_at_starts": "formats/tokens/flat_tokens",
    "flat-tokens.seq_starts.last_equals_token_count": "formats/tokens/flat_tokens",
    "jsonl.index": "formats/jsonl",
    "jsonl.unsafe-index": "formats/jsonl",
    "pbin.index": "formats/tokens/pbin",
    "pbin.index-overlap": "formats/tokens/pbin",
    "pbin.unsafe-index": "formats/tokens/pbin",
}
"""Codes that are put together at run time, and the folder whose source has their last part."""


def codes_in_source() -> set[str]:
    """Return every code that `verify` or `repair` can report, with `<format>` for a variable format."""
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    own = {path: dict(_module_constants(tree)) for path, tree in trees.items()}
    shared = {name: text for constants in own.values() for name, text in constants.items()}
    codes: set[str] = set()
    for path, tree in trees.items():
        if not any(callee in texts[path] for callee in _CALLS):
            continue
        names = shared | own[path] | ({"NAME": "token-files"} if path.parent.name == "folder" else {})
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (callee := _name(node.func)) in _CALLS:
                reported = {
                    _text(one, names) for one in (node.args if callee in ("find_unlisted", "Check") else node.args[:1])
                }
                reported = {one for one in reported if _CODE.fullmatch(one)}
                prefix = _PREFIXES.get(callee)
                codes |= {f"{prefix}{one.replace('<format>', '<array>')}" for one in reported} if prefix else reported
    for format, (folder, callee) in _OWN_CALLS.items():
        parts = set(_parts_reported(SOURCE / folder, callee))
        codes |= {f"{format}.{one}" for one in parts if f"<format>.{one}" not in codes}
    codes |= {
        code
        for code, folder in _COMPUTED.items()
        if any(code.rpartition(".")[2] in texts[path] for path in (SOURCE / folder).rglob("*.py"))
    }
    return codes


def _parts_reported(folder: Path, callee: str) -> Iterator[str]:
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _name(node.func) == callee:
                yield from (text for one in node.args[:2] if _PART.fullmatch(text := _text(one, {})))


def _module_constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from _constants(node.targets[0], node.value)


def _constants(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, str]]:
    match target, value:
        case ast.Name(id=name), ast.Constant(value=str(text)):
            yield name, text
        case ast.Tuple(elts=names), ast.Tuple(elts=values):
            for one in zip(names, values, strict=True):
                yield from _constants(*one)
        case _:
            pass


def _name(callee: ast.expr) -> str:
    return callee.id if isinstance(callee, ast.Name) else callee.attr if isinstance(callee, ast.Attribute) else ""


def _text(node: ast.expr, constants: dict[str, str]) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return constants.get(name, "")
        case ast.JoinedStr(values=values):
            return "".join(_text(one, constants) for one in values)
        case ast.FormattedValue(value=value):
            return _text(value, constants) or "<format>"
        case _:
            return ""


def findings_table() -> Iterator[str]:
    """Lines of the table of findings."""
    yield from ("| code | meaning | fix |", "|---|---|---|")
    yield from (f"| `{code}` | {meaning} | {fix} |" for code, (meaning, fix) in sorted(FINDINGS.items()))
