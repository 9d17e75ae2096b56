"""Braces, metadatasets and recipes of a few bytes that stand for millions of names, files or nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.internals import (
    MOST_FILES_DEEP,
    MOST_NAMES,
    MOST_NODES,
    Info,
    Splits,
    current,
    load_config,
    read_info,
    read_metadataset,
    replace,
    split_shards,
)
from tests.internals import BraceBudget as Budget
from tests.internals import expand_braces as expand

from penstock import open_metadataset
from penstock.errors import ConfigError, FormatError, PenstockError, TooLarge
from penstock.recipe import open_recipe

INFO = Info({f"s_{number}.tar": 1 for number in range(3)}, None, ".info.json")

TEXTS = {
    "padded to 4000 digits": "s{" + "0" * 4000 + "1..9999998}",
    "5000 digits": "{1.." + "9" * 5000 + "}",
    "5000 digits back": "{" + "9" * 5000 + "..1}",
    "a step of 5000 digits": "{1..99999999.." + "1" * 5000 + "0}x{1..10000000}",
    "one brace, often": "{" * 300_000,
    "pairs inside of pairs": "{" * 150_000 + "}" * 150_000,
    "closed first": "}{" * 150_000,
    "a product": "{0..9}" * 12,
    "a product of nothing much": "{a,}" * 30,
    "long ones": "{0..999999}" + "x" * 1000,
    "lists in lists": "{{0..9999999},{0..9999999}}",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_braces(text: str, confined: Callable[..., Any]) -> None:
    found = confined(lambda: expand(text, "split.yaml"))
    assert isinstance(found, FormatError), found


def test_braces_are_counted_over_the_whole_list(confined: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them would do; all of them are too many, among the excludes too."""
    replace(monkeypatch, "most_names", 20_000)
    most = ["s_{0..9999}"] * 20

    def look(splits: Splits) -> Any:
        return split_shards(INFO, splits, "train", "root")

    assert isinstance(confined(lambda: look(Splits({"train": most}))), TooLarge)
    assert isinstance(confined(lambda: look(Splits({"train": []}, exclude=most))), TooLarge)


def test_names_and_characters_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Budget()
    expand("{0..9}{a,bb}", "x", budget=shared)
    assert MOST_NAMES - shared.names == 20
    assert current("most_names_bytes") - shared.characters == 10 * (2 + 3)
    replace(monkeypatch, "most_names_bytes", 49)
    with pytest.raises(TooLarge):
        expand("{0..9}{a,bb}", "x")


def test_a_million_shards_are_a_dataset(confined: Callable[..., Any]) -> None:
    def look() -> tuple[int, str]:
        found = expand("some/folder/of/some-longer-name-{000000..999999}.tar", "split.yaml")
        return len(found), found[-1]

    assert confined(look) == (1_000_000, "some/folder/of/some-longer-name-999999.tar")


# --- metadatasets and recipes --------------------------------------------------------------------------------------


def metadatasets(folder: Path, count: int, names: int) -> Path:
    """A chain of files, each of which names the next so many times."""
    for number in range(count):
        following = f"m{number + 1}.yaml" if number + 1 < count else "data"
        lines = "\n".join(f"      - {{path: {following}, weight: 1}}" for _ in range(names))
        text = f"__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n{lines}\n"
        (folder / f"m{number}.yaml").write_text(text)
    return folder / "m0.yaml"


def recipes(folder: Path, count: int, names: int) -> Path:
    for number in range(count):
        following = f"r{number + 1}.yaml" if number + 1 < count else "data.pbin"
        lines = "\n".join(f"    - {{path: {following}, name: n{one}}}" for one in range(names))
        (folder / f"r{number}.yaml").write_text(f"stream:\n  blend:\n{lines}\n")
    return folder / "r0.yaml"


@pytest.mark.parametrize(("count", "names"), [(28, 2), (1000, 1), (3, 200)])
def test_files_that_name_one_another(count: int, names: int, tmp_path: Path, confined: Callable[..., Any]) -> None:
    meta = metadatasets(tmp_path, count, names)
    for verb in (lambda: read_metadataset(meta, "train"), lambda: open_metadataset(meta), lambda: open_recipe(meta)):
        found = confined(verb)
        assert isinstance(found, TooLarge), found
        assert "too many" in str(found)
    if count > 3:
        assert isinstance(confined(lambda: open_recipe(recipes(tmp_path, count, names))), PenstockError)


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = current("read_document")
    replace(monkeypatch, "read_document", lambda path, what: read.append(path) or real(path, what))
    node: Any = read_metadataset(metadatasets(tmp_path, 8, 2), "train")
    assert len(read) == 8
    for _ in range(8):
        assert len(node.children) == 2
        node = node.children[1][2]


def test_nodes_of_a_metadataset_inside_of_a_recipe_count(tmp_path: Path) -> None:
    meta = metadatasets(tmp_path, 13, 2)  # 8192 datasets and as many mixes
    assert MOST_NODES == 1 << 14
    read_metadataset(metadatasets(tmp_path, 12, 2), "train")
    (tmp_path / "r.yaml").write_text(f"concat: [{{path: {meta.name}, mode: val}}, {{path: {meta.name}, mode: val}}]\n")
    with pytest.raises(PenstockError):
        open_recipe(tmp_path / "r.yaml")


def test_as_deep_as_allowed(tmp_path: Path) -> None:
    read_metadataset(metadatasets(tmp_path, MOST_FILES_DEEP, 1), "train")
    with pytest.raises(TooLarge, match=r"too many nested.*m0\.yaml → … → "):
        read_metadataset(metadatasets(tmp_path, MOST_FILES_DEEP + 1, 1), "train")


def test_merge_keys_of_a_config_are_counted_before_they_are_copied(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    given = "a: &a {" + ", ".join(f"k{n}: 1" for n in range(1_000)) + "}\n"
    path.write_text(given + "".join(f"b{n}: {{<<: *a}}\n" for n in range(10)))
    assert len(load_config(path)["b9"]) == 1_000
    for more in (given + "".join(f"b{n}: {{<<: *a}}\n" for n in range(1_100)), "a: &a {<<: *a}"):
        path.write_text(more)
        with pytest.raises(ConfigError, match="not YAML"):
            load_config(path)


def test_one_key_merged_a_million_times_is_refused_or_is_one_key(tmp_path: Path) -> None:
    """PyYAML 6.0.4 puts a key in once however often it is merged; before, there were as many as ways to it."""
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 7)]  # 10^6 in a6
    path = tmp_path / "c.yaml"
    path.write_text("\n".join([*lines[:6], "b: {<<: *a5}"]))
    assert load_config(path)["b"] == {"x": 1}
    once = tuple(int(part) for part in yaml.__version__.split(".")[:3]) >= (6, 0, 4)
    for last, more in (
        ("a6", "\n".join(lines)),
        ("b9", "\n".join([*lines[:6], *(f"b{n}: {{<<: *a5}}" for n in range(10))])),
    ):
        path.write_text(more)
        with nullcontext() if once else pytest.raises(ConfigError, match="not YAML"):
            assert load_config(path)[last] == {"x": 1}


DEEP = {
    "lists.yaml": "[" * 300_000,
    "lists.json": "[" * 300_000,
    "maps.json": '{"source": ' * 300_000,
    "closed.json": "[" * 900 + "]" * 900,
    "maps.yaml": "{source: " * 300_000,
    "blends.json": json.dumps({"source": {}}).replace("{}", '{"blend": [' * 200 + "]}" * 200),
    "aliases.yaml": "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n",
    "anchors.yaml": "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 200)),
    "digits.yaml": "source: {path: x, split: " + "9" * 5000 + "}",
    "wide.json": '{"concat": [' + ",".join(['{"path": "x.pbin"}'] * 20_000) + "]}",
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_and_wide_files(name: str, tmp_path: Path, confined: Callable[..., Any]) -> None:
    (tmp_path / name).write_text(DEEP[name])
    assert isinstance(confined(lambda: open_recipe(tmp_path / name)), PenstockError)
    if name.endswith(".yaml"):
        assert isinstance(confined(lambda: read_metadataset(tmp_path / name, "train")), PenstockError)


def test_a_dict_that_is_deep() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"source": deep}
    with pytest.raises(FormatError, match="nested too deeply"):
        open_recipe(deep)


def test_a_file_without_end(tmp_path: Path, confined: Callable[..., Any]) -> None:
    """A sparse file takes no disk, and says that it is large."""
    for name in ("r.yaml", "r.json"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)
        found = confined(lambda name=name: open_recipe(tmp_path / name))
        assert isinstance(found, TooLarge), found
    (tmp_path / "set" / ".nv-meta").mkdir(parents=True)
    with (tmp_path / "set" / ".nv-meta" / ".info.json").open("wb") as file:
        file.truncate(1 << 40)
    from penstock.store import LocalStore

    assert isinstance(confined(lambda: read_info(LocalStore(), str(tmp_path / "set"))), TooLarge)


def test_nothing_but_files_is_too_deep(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("source: {path: a.yaml}\n")
    with pytest.raises(ConfigError, match="contains itself"):
        open_recipe(tmp_path / "a.yaml")
