"""Names of hidden files: one table for all modules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import penstock
from penstock.store import names

HIDDEN = re.compile(
    r"\.(staged|lock|writing|claim|unfinished|work|next|pieces|replaced|convert|commit|new|log)\b(?![\w(])"
    r"|penstock-(old|new)|\.kept-"
)
CODE = re.compile(r"[a-z-]*\.(next|replaced|unfinished|work)")
"""A code of a finding, or its end in an f-string."""


def test_no_other_module_spells_a_hidden_name() -> None:
    root = Path(penstock.__file__).parent
    found: list[str] = []
    for path in sorted(root.rglob("*.py")):
        if path == Path(names.__file__):
            continue
        tree = ast.parse(path.read_text())
        skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr) and ast.unparse(node).startswith(("f'{NAME}", "f'{format}")):
                skipped |= {id(one) for one in node.values if CODE.fullmatch(str(getattr(one, "value", "")))}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
                is_code = CODE.fullmatch(node.value) is not None and not node.value.startswith(".")
                if HIDDEN.search(node.value) and not is_code:
                    found.append(f"{path.relative_to(root)}:{node.lineno}: {node.value!r}")
    assert not found, "use penstock.store.names"


def test_the_table_has_every_name() -> None:
    table = str(names.__doc__)
    suffixes = {name: value for name, value in vars(names).items() if name.isupper() and not name.startswith("_")}
    assert suffixes
    assert not [name for name, value in suffixes.items() if value not in table]


def test_names_of_writers_are_recognized() -> None:
    long = "x" * 250
    for name in ("a.bin", long):
        made = [names.staged_name(name), names.hidden_name(name, names.LOCK), names.hidden_name(name, names.UNFINISHED)]
        assert {names.written_stem(one) for one in made} == {names.hidden_name(name, "")}
        assert names.is_staged_for(names.nth_staged_name(name, 3), name)
        assert not names.is_staged_for(names.nth_staged_name(name, 3), f"{name}0")
    assert names.written_stem("a.bin") is None
    assert names.final_path("/d/.a.bin.01234567.staged/x") == "/d/a.bin/x"
    assert names.final_path("/d/.a.bin.new/a.idx") == "/d/a.idx"
    mark = names.writing_path("s3://b/out/.hidden/index.json")
    assert names.writing_path_of(names.writing_piece_path(mark, 7)) == names.writing_path_of(mark) == mark
    assert names.writing_path_of("s3://b/out/index.json") is None
