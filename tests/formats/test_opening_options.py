"""Options of opening: each verb follows one, or refuses it by name, whatever the format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.internals import chunk, main
from tests.smoke.made import MADE

import penstock as ps
from penstock.check import summarise
from penstock.errors import ConfigError, Unsupported
from penstock.formats import BUILT_IN, get_format

GIVEN: dict[str, Any] = {"split": "train", "layout": "uint16", "eos_id": 0, "vocab_size": 100, "validate_hash": "sha1"}
TRAITS = {"split": "splits", "layout": "layouts", "eos_id": "tokens", "vocab_size": "tokens", "validate_hash": "hashes"}

READ: dict[str, Callable[..., object]] = {
    "open": ps.open,
    "info": summarise,
    "verify": ps.verify,
    "diff": lambda path, **options: ps.diff(path, path, **options),
    "find": lambda path, **options: ps.find(path, text="x", **options),
}
WROTE: dict[str, Callable[..., object]] = {
    "merge": lambda path, out, **options: ps.merge([path], out, **options),
    "shuffle": lambda path, out, **options: ps.shuffle(path, out, seed=1, **options),
    "split": lambda path, out, **options: ps.split(path, out, ratio=(1, 1), **options),
    "filter": lambda path, out, **options: ps.filter(path, out, where="True", **options),
    "chunk": lambda path, out, **options: chunk(path, out, chunk_id=0, num_chunks=2, **options),
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_a_format_can_not_follow_is_refused(name: str, tmp_path: Path) -> None:
    made, traits = MADE[name](tmp_path), get_format(name).traits
    refused = [option for option, trait in TRAITS.items() if not getattr(traits, trait)]
    assert refused
    for option in refused:
        given = {"format": name, **made.options, option: GIVEN[option]}
        for verb in READ.values():
            if option not in ("vocab_size", "validate_hash") or verb in (ps.open, summarise, ps.verify):
                with pytest.raises(ConfigError, match=rf"{option} needs .* the format '{name}' doesn't have"):
                    verb(made.path, **given)


@pytest.mark.parametrize("verb", WROTE)
def test_and_by_verbs_that_write(verb: str, tmp_path: Path) -> None:
    for name, option in (("jsonl", "split"), ("jsonl", "eos_id"), ("pbin", "split"), ("mds", "layout")):
        (folder := tmp_path / f"{name} {option}").mkdir()
        made = MADE[name](folder)
        out = folder / f"out{made.path.suffix}"
        with pytest.raises(ConfigError, match=f"{option} needs"):
            WROTE[verb](made.path, out, **{option: GIVEN[option]})
        assert not out.exists()


@pytest.mark.parametrize("option", ["--layout", "--eos-id"])
def test_and_by_repair(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = MADE["mds"](tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["repair", str(made.path), option, "3"])
    assert ended.value.code == ConfigError.exit_status
    assert f"Omit {option}" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["split", "layout"])
def test_and_by_a_conversion(option: str, tmp_path: Path) -> None:
    """An `eos_id` is recorded with the target."""
    made = MADE["jsonl"](tmp_path)
    given = {"source_split" if option == "split" else option: GIVEN[option]}
    with pytest.raises(ConfigError, match=f"{option} needs"):
        ps.convert(made.path, tmp_path / "out", to="mds", **given)
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match=rf"doesn't support these options.*{option}"):
        ps.convert(tmp_path / "a.csv", tmp_path / "out", to="mds", **given)
    for source in (ps.open(made.path), [{"a": 1}]):
        with pytest.raises(ConfigError, match=rf"is already open.*{option}"):
            ps.convert(source, tmp_path / "out", to="mds", **given)
    assert not (tmp_path / "out").exists()


def test_a_layout_that_an_index_contradicts(tmp_path: Path) -> None:
    made = MADE["megatron"](tmp_path)
    assert len(ps.open(made.path, layout="uint16")) == len(made.samples)
    assert not ps.verify(made.path, layout="uint16")
    for verb in (ps.open, ps.verify, ps.repair):
        with pytest.raises(ConfigError, match=r"the index has a different layout.*found uint16.*expected int32"):
            verb(made.path, layout="int32")
        with pytest.raises(ConfigError, match="unknown dtype"):
            verb(made.path, layout="h4")


def test_a_slash_behind_a_file_means_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("pbin", "jsonl", "parquet", "megatron"):
        (folder := tmp_path / name).mkdir()
        path = MADE[name](folder).path.with_suffix({"megatron": ".bin"}.get(name, f".{name}"))
        named = [str(path), f"{path}/"]
        assert len({ps.open(one).fingerprint for one in named}) == 1
        for verb in ("verify", "info", "head -n 1"):
            with pytest.raises(SystemExit) as ended:
                main([*verb.split(), named[1]])
            assert ended.value.code == 0, capsys.readouterr().err
        assert ps.diff(*named).equal
    tmp_path /= "pbin"
    merged = ps.merge([f"{tmp_path}/a.pbin/"], f"{tmp_path}/b.pbin/")
    assert merged.output.path == f"{tmp_path}/b.pbin"
    with pytest.raises(ConfigError, match="replace an input"):
        ps.filter(f"file://{tmp_path}/a.pbin/", tmp_path / "a.pbin", min_tokens=1, overwrite=True)


OF_TOKENS: dict[str, Callable[..., object]] = {
    "merge": lambda path, out: ps.merge([path], out, token_bytes=4),
    "merge of any": lambda path, out: ps.merge([path], out, mix_tokenizers=True),
    "merge dry": lambda path, out: ps.merge([path], out, token_bytes=4, dry_run=True),
    "shuffle": lambda path, out: ps.shuffle(path, out, seed=1, token_bytes=4),
    "filter": lambda path, out: ps.filter(path, out, indices=[0], token_bytes=4),
}


@pytest.mark.parametrize("verb", OF_TOKENS)
@pytest.mark.parametrize("name", ["jsonl", "mds", "webdataset"])
def test_options_of_tokens_for_other_rows(name: str, verb: str, tmp_path: Path) -> None:
    path, out = MADE[name](tmp_path).path, tmp_path / "out"
    with pytest.raises((ConfigError, Unsupported), match=r"token_bytes|mix_tokenizers|doesn't support samples"):
        OF_TOKENS[verb](path, out)
    assert not out.exists()


def test_options_of_rows_for_tars(tmp_path: Path) -> None:
    path, out = MADE["webdataset"](tmp_path).path, tmp_path / "out"
    with pytest.raises(ConfigError, match="memory_bytes doesn't apply to tar shards"):
        ps.shuffle(path, out, seed=1, memory_bytes=1 << 20)
    with pytest.raises(Unsupported, match="tar shards can only be rewritten as tar shards"):
        ps.split(path, out, ratio=(1, 1), to="mds")
    assert not out.exists()
