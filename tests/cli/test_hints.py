"""Options that the texts of our code name are options of a command."""

from __future__ import annotations

import ast
import io
import re
import tarfile
from pathlib import Path

from tests.cli.called import called

import penstock

from .test_options import COMMANDS, COMMON

OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*[a-z]")
SOURCE = Path(penstock.__file__).parent
KNOWN = {name for command in COMMANDS.values() for one in command.params for name in (*one.opts, *one.secondary_opts)}
KNOWN |= COMMON | {"--help", "--version", "--errors"}
OF_OTHER_PROGRAMS = {"--array": "sbatch", "--dereference": "tar", "--hard-dereference": "tar", "--sparse": "tar"}
"""Option of another program → the program."""


def hints() -> list[tuple[str, str]]:
    """Place and text of every `hint=`, with the constant parts of f-strings."""
    texts: list[tuple[str, str]] = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                parts = [one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)]
                text = " ".join(one for one in parts if isinstance(one, str))
                texts.append((f"{path.relative_to(SOURCE)}:{node.value.lineno}", text))
    return texts


def test_hints_name_options_that_exist() -> None:
    unknown = [
        (where, name)
        for where, text in hints()
        for name in OPTION.findall(text)
        if name not in KNOWN | OF_OTHER_PROGRAMS.keys()
    ]
    assert not unknown


def test_prepare_of_shards_with_a_common_key_names_the_option_that_works(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as tar:
            member = tarfile.TarInfo("key.txt")
            member.size = 1
            tar.addfile(member, io.BytesIO(name.encode()))
    command = ("prepare", tmp_path, "--split-ratio", "1,0,0")
    refused = called(*command)
    assert (refused.returncode, "--no-sqlite" in refused.stderr) == (6, True)
    assert called(*command, "--no-sqlite").returncode == 0
