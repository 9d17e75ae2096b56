"""YAML by OmegaConf's rules; expected values are what OmegaConf 2.3 gives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.internals import load_config

from penstock.errors import ConfigError, NotFound, UnsafeData


def load(folder: Path, text: str) -> dict[str, Any]:
    (folder / "a.yaml").write_text(text, encoding="utf-8")
    return load_config(folder / "a.yaml")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${a.b}", 3),
        ("v${a.b}", "v3"),
        ("${a.c[1].d}", "x"),
        ("${a.c.0}", 1),
        ("${a['b']}", 3),
        ("${a.${key}}", 3),
        ("${key}/${top}-${flag}", "b/T-True"),
        ("${a.c}", [1, {"d": "x"}]),
        ("${alias.b}", 3),
        ("${nothing}", None),
        ("x${nothing}", "xNone"),
        (r"\${a.b} and ${top}", "${a.b} and T"),
        ("${ top }", "T"),
        ("no ${", None),
        ("${oc.env:PENSTOCK_TEST}", "set"),
        ("${oc.env:PENSTOCK_NOT,default}", "default"),
        ("${oc.env:PENSTOCK_NOT,'a, b'}", "a, b"),
        ("${oc.env:PENSTOCK_NOT,null}", None),
        ("${oc.env:PENSTOCK_NOT,${top}}", "T"),
        ("${cuda_env:PENSTOCK_TEST}", "set"),
        ("${cuda_env:PENSTOCK_NOT}", None),
        ("${cuda_env:RANK}", 5),
        ("${node_env:num_cpus}", os.cpu_count()),
        ("${node_env:other}", None),
    ],
)
def test_interpolation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, expected: object) -> None:
    monkeypatch.setenv("PENSTOCK_TEST", "set")
    monkeypatch.setenv("RANK", "5")
    text = "a: {b: 3, c: [1, {d: x}]}\ntop: T\nkey: b\nflag: true\nnothing: null\nalias: ${a}\nvalue: " + repr(value)
    text = text.replace("\\\\", "\\")
    if value == "no ${":
        with pytest.raises(ConfigError, match="unterminated"):
            load(tmp_path, text)
        return
    assert load(tmp_path, text)["value"] == expected


def test_relative_places(tmp_path: Path) -> None:
    text = "a: {b: 3, f: '${.b}', g: '${..top}', deep: {x: '${..b}', y: '${...top}'}}\ntop: T\nl: [7, '${.0}']\nm: ${a}"
    found = load(tmp_path, text)
    assert found["a"] == {"b": 3, "f": 3, "g": "T", "deep": {"x": 3, "y": "T"}}
    assert found["l"] == [7, 7]
    assert found["m"] == found["a"]


def test_paths_of_the_file(tmp_path: Path) -> None:
    text = "f: ${modalities_env:config_file_path}\nd: ${modalities_env:config_folder_path}\ns: ${.d}/x"
    found = load(tmp_path, text)
    assert found == {"f": tmp_path / "a.yaml", "d": tmp_path, "s": f"{tmp_path}/x"}


def test_scalars(tmp_path: Path) -> None:
    text = "a: 1e3\nb: 1_000\nc: 2020-01-01\nd: .5\ne: 0x10\nf: 010\ng: yes\nh: '1e3'\ni: -.inf\nj: 1.5e-3\nk: ~"
    expected = {
        **{"a": 1000.0, "b": 1000, "c": "2020-01-01", "d": 0.5, "e": 16, "f": 8, "g": True, "h": "1e3"},
        **{"i": float("-inf"), "j": 0.0015, "k": None},
    }
    assert load(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: 1\na: 2", "is repeated"),
        ("a: {b: 1, b: 2}", "is repeated"),
        ("a: ${b}\nb: ${a}", "circular interpolation"),
        ("a: ${a}", "circular interpolation"),
        ("a: ${zz}", "unresolved interpolation: no 'zz'"),
        ("a: {b: '${.zz}'}", "unresolved interpolation: no 'a.zz'"),
        ("a: [1]\nb: ${a.1}", "unresolved interpolation"),
        ("a: '${...b}'", "above the root"),
        ("a: ${cuda_env:WORLD_SIZE}", "cuda_env has no 'WORLD_SIZE'"),
        ("a: ${oc.env:PENSTOCK_NOT}", "no 'PENSTOCK_NOT'"),
        ("a: ${modalities_env:other}", "no 'other'"),
        ("a: ${python:1}", "unknown resolver 'python'"),
        ("a: ${node_env:a,b}", "one name"),
        ("- 1", "a mapping"),
        ("", "a mapping"),
        ("a: [", "not YAML"),
        ("a: !!python/object/apply:os.system ['true']", "not YAML"),
        ("a: \x01", "not YAML"),
    ],
)
def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, what: str) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ConfigError, match=what):
        load(tmp_path, text)


def test_a_file_that_grows_without_end(tmp_path: Path) -> None:
    for text in (
        "a0: &a0 [x, x]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)),
        "a0: [x, x]\n" + "\n".join(f"a{n}: ['${{a{n - 1}}}', '${{a{n - 1}}}']" for n in range(1, 40)),
        "\n".join(f"a{n}: ${{a{n + 1}}}" for n in range(500)) + "\na500: 1",
    ):
        with pytest.raises(UnsafeData, match="without limit"):
            load(tmp_path, text)


def test_a_missing_file_and_a_huge_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        load_config(tmp_path / "nothing.yaml")
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ConfigError, match="too large"):
        load_config(tmp_path / "huge.yaml")
