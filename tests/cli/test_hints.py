"""Options that the texts of our code name are options of a command."""

from __future__ import annotations

import ast
import functools
import io
import re
import tarfile
from pathlib import Path

from tests.cli.called import called
from tests.internals import with_options

import penstock

from .test_options import COMMANDS, COMMON

OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*[a-z]")
SOURCE = Path(penstock.__file__).parent
KNOWN = {name for command in COMMANDS.values() for one in command.params for name in (*one.opts, *one.secondary_opts)}
KNOWN |= COMMON | {"--help", "--version", "--errors"}
OF_OTHER_PROGRAMS = {"--array": "sbatch", "--dereference": "tar", "--hard-dereference": "tar", "--sparse": "tar"}
"""Option of another program → the program."""


@functools.cache
def hints() -> list[tuple[str, str]]:
    """Place and text of every `hint=`, with the constant parts of f-strings."""
    texts: list[tuple[str, str]] = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text if "hint=" in text else "")):
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


def test_hints_name_the_options_of_the_command_and_no_arguments_of_python() -> None:
    hint = "Pass token_bytes= or vocab_size="
    assert with_options(hint, COMMANDS["convert"]) == "Pass --token-bytes or --vocab-size"
    assert with_options(hint, COMMANDS["merge"]) == "Pass --token-bytes"
    assert with_options(hint, COMMANDS["doctor"]) == hint
    hint = "Name it: --split (split=), or eos= (--eos), with to='mds'; overwrite=True (--overwrite); image=image.jpg"
    expected = "Name it: --split, or --eos, with --to mds; --overwrite; image=image.jpg"
    assert with_options(hint, COMMANDS["convert"]) == expected


def test_no_option_in_a_hint_is_followed_or_preceded_by_its_argument() -> None:
    for where, text in hints():
        written = with_options(text.replace("= )", "=)"), COMMANDS["doctor"])
        assert not re.search(r"--[^()]* \([a-z_]+=[^(]*\)|[a-z_]+=\S* \(--", written), where


def test_errors_and_findings_have_hints_for_the_command_line(tmp_path: Path) -> None:
    data = Path(__file__).parents[1] / "golden" / "litdata"
    refused = called("convert", data / "samples", tmp_path / "x.pbin", "--eos-id", "3")
    assert (refused.returncode, "Specify the column of token ids: --tokens-column [" in refused.stderr) == (10, True)
    for verb in ("head", "energon preview"):
        shown = called(*verb.split(), data / "samples-pickle")
        assert (shown.returncode != 0, "columns=" in shown.stdout + shown.stderr) == (True, False)
    assert "--trust" not in called("head", data / "samples-pickle", "--json").stdout
    found = called("verify", data / "samples-pickle")
    assert (found.returncode, "take --columns n\n" in found.stdout) == (1, True)


def test_hints_name_raw_only_as_an_argument_of_python() -> None:
    """No command has an option for it."""
    assert not any(name == "raw" for command in COMMANDS.values() for name in (one.name for one in command.params))
    wrong = [where for where, text in hints() if "raw=" in text.partition("In Python")[0]]
    assert not wrong
