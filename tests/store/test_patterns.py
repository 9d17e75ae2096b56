"""Paths that stand for others."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ConfigError, NotFound
from penstock.store.find import find_files
from penstock.store.outputs import require_other
from penstock.store.patterns import alternatives, is_pattern, last_part, pattern_of
from penstock.store.place import place_of

NAMES = st.text(st.sampled_from("ab{},[]*?. "), min_size=1, max_size=8).filter(lambda name: name.strip("."))


@settings(max_examples=50, deadline=None)
@given(names=st.lists(NAMES, min_size=1, max_size=5, unique=True), folders=st.lists(NAMES, max_size=2))
def test_several_paths_are_a_pattern_that_means_them(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], folders: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("x").joinpath(*(f"{one}_" for one in folders))
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.jsonl" for name in names]
    for path in paths:
        path.touch()
    pattern = pattern_of(paths)
    assert sorted(find_files(pattern, [(".jsonl",)], "JSONL")) == sorted(map(str, paths))
    assert place_of(paths).path == pattern
    assert is_pattern(pattern) == (len(paths) > 1 or is_pattern(str(paths[0])))


def test_patterns_in_patterns(tmp_path: Path) -> None:
    for name in ("a1", "a2", "b1", "c1"):
        (tmp_path / f"{name}.jsonl").touch()
    found = pattern_of([f"{tmp_path}/a*.jsonl", f"{tmp_path}/{{b,c}}1.jsonl"])
    assert sorted(Path(one).stem for one in find_files(found, [(".jsonl",)], "JSONL")) == ["a1", "a2", "b1", "c1"]
    assert last_part(found) == "{a*.jsonl,b1.jsonl,c1.jsonl}"
    assert alternatives(str(tmp_path)) == [str(tmp_path)]
    assert alternatives("shards-{000..003}.tar") == ["shards-{000..003}.tar"]


def test_a_name_with_braces_that_is_there_is_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "{a,b}"
    folder.mkdir()
    (folder / "x.jsonl").touch()
    assert list(find_files(f"{folder}/*.jsonl", [(".jsonl",)], "JSONL")) == [f"{folder}/x.jsonl"]


def test_what_is_no_pattern(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(NotFound, match=r"b\.jsonl"):
        pattern_of([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    with pytest.raises(ConfigError, match="different stores"):
        pattern_of(["s3://one/a.jsonl", "s3://two/a.jsonl"])
    assert pattern_of(["s3://one/a.jsonl", "s3://one/b.jsonl"]) == "s3://one/{a.jsonl,b.jsonl}"
    with pytest.raises(ConfigError, match="no path"):
        pattern_of([])


@pytest.mark.parametrize("pattern", ["*.jsonl", "{a,b}.jsonl"])
def test_an_output_that_a_pattern_means_is_an_input(tmp_path: Path, pattern: str) -> None:
    """It was replaced."""
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jsonl").touch()
    with pytest.raises(ConfigError, match="would replace an input"):
        require_other([f"{tmp_path}/{pattern}"], f"{tmp_path}/b.jsonl")
    require_other([f"{tmp_path}/{{a,b}}.jsonl"], f"{tmp_path}/c.jsonl")


def test_an_exclude_list_among_files_is_an_error(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.jsonl", "a.jsonl.penstock.exclude.jsonl")]
    for path in paths:
        path.write_text("{}\n")
    for read in (ps.open, lambda some: ps.merge(some, tmp_path / "o.jsonl"), ps.index):
        with pytest.raises(ConfigError, match="exclude list, not data"):
            read(paths)


def test_files_without_an_index_are_compared_with_the_output(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for path in paths:
        path.write_text('{"n": 1}\n{"n": 2}\n')
    ps.split(paths, tmp_path / "parts", ratio=(1, 1))
    with pytest.raises(ConfigError, match="the output exists"):
        ps.split(paths, tmp_path / "parts", ratio=(1, 1))
    ps.split(paths, tmp_path / "parts", ratio=(1, 1), overwrite=True)
