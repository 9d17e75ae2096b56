"""Which verbs there are, names of earlier versions, and what `split` and `verify` took over from other verbs."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from tests.cli.called import called
from tests.internals import COMMAND_ALIASES as ALIASES
from tests.internals import COMMANDS, GROUPS, chunk, cli
from tests.internals import HIDDEN_COMMANDS as HIDDEN
from tests.internals import RENAMED_COMMANDS as RENAMED

import penstock as ps
from penstock.errors import ConfigError

ROWS = [{"id": n} for n in range(7)]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_there_are_at_most_thirty_verbs_in_groups() -> None:
    shown = called("--help").stdout
    assert sum(map(len, GROUPS.values())) <= 30
    for group, verbs in GROUPS.items():
        assert f"\n{group}:\n" in shown
        for verb, what in verbs.items():
            assert f"\n  {verb} " in shown
            assert what[0].isupper()
            assert what.endswith(".")
    assert not any(f"\n  {verb} " in shown for verb in HIDDEN)
    assert called("completion", "bash").returncode == 0


@pytest.mark.parametrize("name", RENAMED)
def test_names_of_earlier_versions_name_the_new_verb(name: str, lines: Path) -> None:
    done = called(name, lines, "--no-such-option")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Error: '{name}' is now `penstock {RENAMED[name]}`.\n"
    assert RENAMED[name].split()[0] in COMMANDS
    error = json.loads(called(name, lines, "--json").stdout)["error"]
    assert (error["code"], RENAMED[name] in error["message"]) == ("usage", True)


@pytest.mark.parametrize("verb", sorted(ALIASES.keys() - {""}))
def test_options_of_earlier_versions_are_taken_and_not_shown(verb: str) -> None:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    context = click.Context(command, info_name=verb)
    shown = command.get_help(context)
    for old, new in ALIASES[verb].items():
        assert new in shown
        assert old not in shown.replace(f"{old}s", "")
        option = next(one for one in command.params if new in one.opts)
        values, _, _ = command.make_parser(context).parse_args([old, "1"])
        assert values[option.name] == "1"


def test_an_option_of_an_earlier_version_works(lines: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert called("exclude", lines, "--key", "3", "--reason", "asked", "--list", gone).returncode == 0
    assert gone.exists()
    for name in ("--list", "--excludes"):
        made = tmp_path / f"made{name}.jsonl"
        assert called("purge", lines, "-o", made, name, gone).returncode == 0
        assert len(ps.open(made)) == 6


def test_a_contiguous_part_is_what_chunk_wrote(lines: Path, tmp_path: Path) -> None:
    for only in range(3):
        done = called("split", lines, "-o", tmp_path / f"{only}.jsonl", "--parts", 3, "--only", only, "--keep-map")
        assert f"(part {only} of 3 contiguous parts, counted from 0)" in done.stdout
        (tmp_path / "old").mkdir(exist_ok=True)
        chunk(lines, tmp_path / "old" / f"{only}.jsonl", chunk_id=only, num_chunks=3, keep_map=True)
        for suffix in ("", ".penstock", ".penstock.rows"):
            name = f"{only}.jsonl{suffix}"
            assert (tmp_path / name).read_bytes() == (tmp_path / "old" / name).read_bytes()
    [part] = ps.split(lines, tmp_path / "p.jsonl", parts=3, only=2)
    assert (part.samples, ps.open(tmp_path / "p.jsonl")[0]) == (2, ROWS[5])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "Give either --ratio 8,1,1 or --parts N --only I"),
        (("--ratio", "1,1", "--parts", 2, "--only", 0), "Give either --ratio 8,1,1 or --parts N --only I"),
        (("--parts", 2), "must be given together"),
        (("--ratio", "1,1", "--only", 0), "must be given together"),
        (("--ratio", "1,1", "--token-bytes", 4), "leave out --token-bytes"),
        (("--parts", 2, "--only", 0, "--seed", 0), "leave out --seed"),
        (("--parts", 2, "--only", 0, "--names", "a,b"), "leave out --names"),
        (("--parts", 2, "--only", 0, "--by", "content"), "leave out --by"),
        (("--parts", 2, "--only", 0, "--workers", 2), "leave out --workers"),
        (("--parts", 2, "--only", 0, "--part", "0/2"), "leave out --part"),
        (("--parts", 2, "--only", 0, "--maxcount", 2), "leave out --maxcount"),
    ],
)
def test_split_refuses_options_that_contradict_each_other(
    lines: Path, tmp_path: Path, options: tuple[object, ...], said: str
) -> None:
    done = called("split", lines, "-o", tmp_path / "o", *options)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    "options",
    [{}, {"parts": 2}, {"parts": 2, "only": 2}, {"parts": 0, "only": 0}, {"ratio": (1, 1), "parts": 2, "only": 0},
     {"parts": 2, "only": 0, "seed": 1}, {"parts": 2, "only": 0, "workers": 2}, {"ratio": (1, 1), "token_bytes": 4}],
)  # fmt: skip
def test_the_function_refuses_them_too(lines: Path, tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ps.split(lines, tmp_path / "o.jsonl", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "o.jsonl").exists()


def test_trust_is_for_decoding(lines: Path) -> None:
    done = called("verify", lines, "--trust")
    assert (done.returncode, "leave out --trust" in done.stderr) == (2, True)
    assert called("verify", lines, "--trust", "--depth", "decode").returncode == 0


def test_decoding_is_not_distributed(lines: Path, tmp_path: Path) -> None:
    done = called("verify", lines, "--depth", "decode", "--work", tmp_path / "work", "--part", "0/2")
    assert (done.returncode, "can't be distributed. Check at --depth full" in done.stderr) == (10, True), done.stderr


def test_a_path_after_the_option_of_pictures(lines: Path) -> None:
    done = called("head", "--pictures", lines)
    assert (done.returncode, "Put paths before --pictures" in done.stderr) == (2, True)
    assert "sample 0 of 7" in called("head", lines, "--pictures").stdout


def test_convert_takes_the_target_as_an_option_too(lines: Path, tmp_path: Path) -> None:
    assert called("convert", lines, "-o", tmp_path / "o.jsonl").returncode == 0
    assert called("convert", lines, tmp_path / "o.jsonl", "--output", tmp_path / "two.jsonl").returncode == 0
    assert [len(ps.open(tmp_path / name)) for name in ("o.jsonl", "two.jsonl")] == [7, 14]
    done = called("convert", lines)
    assert (done.returncode, "Missing argument 'TARGET'" in done.stderr) == (2, True)
