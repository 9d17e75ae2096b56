"""A directory, a pattern or a list of token files of any single-file format is one dataset, in natural order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import main

import penstock as ps
from penstock.errors import ConfigError, Unsupported

EOS = 0
NUMBERS = (1, 2, 10)
DOCUMENTS = {n: [[n, n + 100, EOS], [n + 200, EOS]] for n in NUMBERS}
ALL = [document for n in NUMBERS for document in DOCUMENTS[n]]


def flat(n: int) -> list[int]:
    return [token for document in DOCUMENTS[n] for token in document]


def written(format: str, **options: Any) -> Callable[[Path, int], None]:
    def write(path: Path, n: int) -> None:
        with ps.create(path, format=format, eos_id=EOS, **options) as writer:
            for document in DOCUMENTS[n]:
                writer.write({"tokens": np.array(document, np.uint32)})

    return write


def datatrove(path: Path, n: int) -> None:
    np.array(flat(n), "<u2").tofile(path)
    np.cumsum([len(document) for document in DOCUMENTS[n]]).astype("<u8").tofile(f"{path}.index")


def llm_c(path: Path, n: int) -> None:
    tokens = np.array([token for document in DOCUMENTS[n] for token in (EOS, *document[:-1])], "<u2")
    header = np.zeros(256, "<i4")
    header[:3] = 20_240_520, 1, len(tokens)
    path.write_bytes(header.tobytes() + tokens.tobytes())


Case = tuple[str, Callable[[Path, int], None], dict[str, Any]]
CASES: dict[str, Case] = {
    "pbin": (".pbin", written("pbin", token_bytes=2), {}),
    "megatron": (".idx", written("megatron", token_bytes=2), {}),
    "flat-tokens": (".zarr", written("flat-tokens"), {}),
    "nanoGPT": (".bin", lambda path, n: np.array(flat(n), "<u2").tofile(path), {"layout": "uint16", "eos_id": EOS}),
    "OLMo": (".npy", lambda path, n: np.array(flat(n), "<u4").tofile(path), {"layout": "uint32", "eos_id": EOS}),
    "numpy": (".npy", lambda path, n: np.save(path, np.array(flat(n), "<u2")), {"eos_id": EOS}),
    "llm.c": (".bin", llm_c, {"eos_id": EOS}),
    "datatrove": (".ds", datatrove, {}),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str, dict[str, Any], list[list[int]]]:
    suffix, write, options = CASES[request.param]
    (folder := tmp_path / "data").mkdir()
    for n in (10, 2, 1):
        write(folder / f"part-{n}{suffix}", n)
    # llm.c begins a document with the token that ends it elsewhere.
    documents = [[EOS, *document[:-1]] for document in ALL] if request.param == "llm.c" else ALL
    return folder, suffix, options, documents


def test_one_dataset(case: tuple[Path, str, dict[str, Any], list[list[int]]], tmp_path: Path) -> None:
    folder, suffix, options, documents = case
    for path in (folder, folder / f"*{suffix}", f"{folder}/part-{{1,2,10}}{suffix}",
                 [folder / f"part-{n}{suffix}" for n in (2, 10, 1)]):  # fmt: skip
        source: Any = ps.open(path, **options)
        assert [source[at]["tokens"].tolist() for at in range(len(source))] == documents, path
        assert source.num_tokens == sum(map(len, documents))
        again: Any = ps.open_recipe(source.recipe())
        assert again.fingerprint == source.fingerprint
        assert again[len(documents) - 1]["tokens"].tolist() == documents[-1]
        if not isinstance(path, list):
            assert not [one for one in ps.verify(path, depth="full", **options) if one.severity == "error"]
    ps.convert(folder, tmp_path / "out.pbin", to="pbin", **options)
    converted: Any = ps.open(tmp_path / "out.pbin")
    assert [converted[at]["tokens"].tolist() for at in range(len(converted))] == documents


def test_on_the_command_line(case: tuple[Path, str, dict[str, Any], list[list[int]]], capsys: Any) -> None:
    folder, suffix, options, _ = case
    named = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    for path in (folder, folder / f"*{suffix}"):
        for verb in ("info", "verify"):
            with pytest.raises(SystemExit) as ended:
                main([verb, str(path), *named, "--json"])
            assert ended.value.code == 0, capsys.readouterr().err
        capsys.readouterr()


def test_numbers_as_wide_as_each_other_keep_byte_order(tmp_path: Path) -> None:
    names = ["a-b.pbin", "a1.pbin", "a_b.pbin", "b/a0.pbin", "b.pbin"]
    for n, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with ps.create(tmp_path / name, format="pbin", token_bytes=2, eos_id=EOS) as writer:
            writer.write({"tokens": np.array([n + 1, EOS])})
    source: Any = ps.open(tmp_path)
    assert [names[source[at]["tokens"][0] - 1] for at in range(len(source))] == sorted(names)


def test_a_mask_is_not_left_behind(tmp_path: Path) -> None:
    for n in (1, 2):
        datatrove(tmp_path / f"{n}.ds", n)
    (tmp_path / "2.ds.loss").write_bytes(bytes(len(flat(2))))
    with pytest.raises(ConfigError, match="planes aren't supported"):
        ps.open(tmp_path)
    assert len(ps.open(tmp_path, planes=None)) == 4


def test_one_document(tmp_path: Path) -> None:
    for n in NUMBERS:
        np.array(flat(n), "<u2").tofile(tmp_path / f"{n}.bin")
    source: Any = ps.open(tmp_path, layout="uint16", one_document=True)
    assert [source[at]["tokens"].tolist() for at in range(len(source))] == [flat(n) for n in NUMBERS]
    assert source.tokens(4, 7).tolist() == [token for n in NUMBERS for token in flat(n)][4:7]
    packed = tmp_path / "packed"
    packed.mkdir()
    written("pbin", token_bytes=2)(packed / "a.pbin", 1)
    with pytest.raises(ConfigError, match="stores document borders"):
        ps.open(packed, one_document=True)


def test_a_pattern_of_other_files_names_one(tmp_path: Path) -> None:
    for n in NUMBERS:
        (tmp_path / f"{n}.bin").write_bytes(bytes(6))
    for path in (f"{tmp_path}/*.bin", f"{tmp_path}/[12].bin"):
        with pytest.raises(Unsupported, match="--layout"):
            ps.open(path)
    for n in NUMBERS:
        (tmp_path / f"{n}.txt").write_text("x")
    with pytest.raises(Unsupported, match="no format can read the files of this pattern"):
        ps.open(f"{tmp_path}/*.txt")
