"""One definition per option: a line added to `penstock._keywords` is found wherever options are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LINE = '    hue: Annotated[str | None, Opt("Hue of {whose}.", needs=("splits", "hues"), common=True)]\n'

ADD = """
import importlib.util, json, sys
spec = importlib.util.find_spec("penstock._keywords")
keywords = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
source = open(spec.origin).read()
assert source.count("    flavor: Annotated") == 1
source = source.replace("    flavor: Annotated", LINE + "    flavor: Annotated")
exec(compile(source, spec.origin, "exec"), vars(keywords))
"""
"""Import `penstock._keywords` with one more line, before anything else is imported."""

FIND = """
import inspect
import click
import penstock as ps
from penstock.cli.main import cli
from penstock.recipe.schema import recipe_schema
from penstock.types import OpenOptions
from commands import cli_page

def refusal(call, *arguments):
    try:
        call(*arguments, hue="red")
    except ps.errors.ConfigError as error:
        return str(error)

def help_of(verb):
    context = click.Context(cli, info_name="penstock")
    return cli.get_command(context, verb).get_help(click.Context(cli, info_name=verb, terminal_width=200))

page = cli_page()
print(json.dumps({
    "default": OpenOptions().hue,
    "value": OpenOptions(hue="red").hue,
    "signature": "hue" in inspect.signature(ps.open).parameters,
    "recipe": recipe_schema()["$defs"]["kind:open"]["properties"].get("hue"),
    "refused": {verb: refusal(getattr(ps, verb), *arguments) for verb, arguments in CALLS.items()},
    "help": {verb: "--hue NAME" in help_of(verb) for verb in CALLS if verb not in ("open", "convert", "verify")},
    "documented": [line for line in page.splitlines() if line.startswith("| `hue`")],
}))
"""

CALLS = {
    **{verb: ["a.jsonl"] for verb in ("open", "info", "head")},
    **{verb: ["a.jsonl", "o.jsonl"] for verb in ("shuffle", "filter", "purge")},
    "report": ["a.jsonl", "o.html"],
    "merge": [["a.jsonl", "a.jsonl"], "o.jsonl"],
    "diff": ["a.jsonl", "a.jsonl"],
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("hue")
    (folder / "a.jsonl").write_text('{"text": "a"}\n')
    site = Path(__file__).parent.parent / "docs/site"
    code = f"LINE = {LINE!r}\nCALLS = {CALLS!r}\nimport sys; sys.path.append({str(site)!r})\n{ADD}{FIND}"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_class_and_the_signature_have_the_option(found: Any) -> None:
    assert (found["default"], found["value"], found["signature"]) == (None, "red", True)


def test_recipes_have_the_option(found: Any) -> None:
    assert found["recipe"] == {"type": ["string", "null"]}


def test_formats_without_the_trait_refuse_the_option(found: Any) -> None:
    for verb, message in found["refused"].items():
        assert message is not None, verb
        assert "hue needs hues, which the format 'jsonl' doesn't have" in message, verb


def test_help_and_documentation_have_the_option(found: Any) -> None:
    assert all(found["help"].values()), found["help"]
    assert found["documented"] == ["| `hue` | `str | None` | `None` | Hue of the dataset. | `splits` |"]


def test_a_shell_completes_the_option(tmp_path: Path) -> None:
    code = f"LINE = {LINE!r}\n{ADD}\nfrom penstock.cli.main import main\nmain()"
    shell = {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": "penstock info --h", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=shell, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "plain,--hue" in done.stdout, done.stderr
