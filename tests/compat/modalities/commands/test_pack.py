"""`pack_encoded_data`: its settings, its bytes, and no document lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.internals import load_config, read_settings
from tests.reshape.datasets import documents_in, files_in, sound

from penstock.compat.modalities import create_raw_data_index, pack_encoded_data
from penstock.errors import ConfigError, Corrupt, NotFound, PrepareError

EOD = 0


def config_of(name: str, **settings: Any) -> dict[str, Any]:
    config = load_config(f"configs/{name}.yaml")
    config["settings"] |= settings
    return config


def with_tokenizer(name: str, **changes: Any) -> dict[str, Any]:
    config = config_of(name)
    config["tokenizer"]["config"] |= changes
    return config


@pytest.fixture
def indexed(workplace: Path) -> Path:
    for n in range(3):
        create_raw_data_index(Path(f"inputs/part{n}.jsonl"), Path(f"idx/part{n}.idx"))
    return workplace


class TestGolden:
    @pytest.mark.parametrize("name", ["bpe2", "small1"])
    def test_documents(self, indexed: Path, golden: Path, name: str) -> None:
        done = pack_encoded_data(config_of(f"pack_{name}"))
        assert (
            Path(f"pbin/docs.{name}.pbin").read_bytes()
            == (golden / "modalities" / "pbin" / f"docs.{name}.pbin").read_bytes()
        )
        assert not done.differences
        assert not done.notes
        assert files_in(Path("pbin")) == {f"docs.{name}.pbin", f"docs.{name}.pbin.penstock"}

    @pytest.mark.parametrize("n", range(3))
    def test_parts(self, indexed: Path, n: int) -> None:
        pack_encoded_data(config_of(f"pack_part{n}", dst_path=f"new/part{n}.pbin"))
        assert Path(f"new/part{n}.pbin").read_bytes() == Path(f"parts/part{n}.pbin").read_bytes()

    @pytest.mark.parametrize("name", ["special", "cut8"])
    def test_tokenizer_settings(self, indexed: Path, golden: Path, name: str) -> None:
        done = pack_encoded_data(config_of(f"pack_{name}", dst_path="new/a.pbin"))
        expected = golden / "modalities" / "commands" / "packed" / f"part0.{name}.pbin"
        assert Path("new/a.pbin").read_bytes() == expected.read_bytes()
        assert done.notes == ["unknown settings are ignored: bogus"]
        assert files_in(Path("new")) == {"a.pbin", "a.pbin.penstock"}
        assert sound(Path("new/a.pbin"))


class TestSettings:
    def test_beside_the_source_by_default(self, indexed: Path) -> None:
        config = config_of("pack_part0", dst_path=None, index_path=None)
        create_raw_data_index(Path("inputs/part0.jsonl"))
        assert read_settings(config).dst_path == Path("inputs/part0.pbin")
        pack_encoded_data(config)
        assert Path("inputs/part0.pbin").read_bytes() == Path("parts/part0.pbin").read_bytes()

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            ({"num_cpus": 0}, "num_cpus"),
            ({"num_cpus": "2"}, "num_cpus"),
            ({"num_cpus": True}, "num_cpus"),
            ({"processing_batch_size": None}, "processing_batch_size"),
            ({"raw_samples_queue_size": 0}, "raw_samples_queue_size"),
            ({"processed_samples_queue_size": 1.5}, "processed_samples_queue_size"),
            ({"jq_pattern": None}, "jq_pattern"),
            ({"eod_token": 3}, "eod_token"),
            ({"src_path": None}, "src_path"),
            ({"eod_token": "<|nothing|>"}, "not in the vocabulary"),
            ({"jq_pattern": ".text |"}, "jq"),
        ],
    )
    def test_wrong_ones(self, indexed: Path, change: dict[str, Any], what: str) -> None:
        with pytest.raises(ConfigError, match=what):
            pack_encoded_data(config_of("pack_part0", dst_path="new.pbin", **change))
        assert not Path("new.pbin").exists()

    def test_missing_files(self, indexed: Path) -> None:
        for change in ({"src_path": "nothing.jsonl"}, {"index_path": "nothing.idx"}, {"index_path": None}):
            with pytest.raises(NotFound, match="no such file"):
                pack_encoded_data(config_of("pack_part0", dst_path="new.pbin", **change))

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            ({"bogus": 1}, "no setting bogus"),
            ({"padding": "max_length"}, "never padded"),
            ({"truncation": True}, "without a length"),
            ({"special_tokens": {"pad_token": "<new>"}}, "already be in the vocabulary: found <new>"),
            ({"special_tokens": ["<new>"]}, "not a mapping"),
            ({"pretrained_model_name_or_path": None}, "not a string"),
        ],
    )
    def test_wrong_tokenizers(self, indexed: Path, change: dict[str, Any], what: str) -> None:
        with pytest.raises(ConfigError, match=what):
            pack_encoded_data(with_tokenizer("pack_part0", **change))

    def test_other_sections(self, indexed: Path) -> None:
        config = config_of("pack_part0")
        for broken in ({"tokenizer": config["tokenizer"]}, {"settings": config["settings"]}):
            with pytest.raises(ConfigError, match="no section"):
                pack_encoded_data(broken)
        config["tokenizer"] = {**config["tokenizer"], "variant_key": "other"}
        with pytest.raises(ConfigError, match=r"unknown tokenizer: found tokenizer\.other"):
            pack_encoded_data(config)

    def test_policies(self, indexed: Path) -> None:
        config = config_of("pack_part0", dst_path="parts/part1.pbin")
        with pytest.raises(ConfigError, match="exists"):
            pack_encoded_data(config)
        before = Path("parts/part1.pbin").read_bytes()
        pack_encoded_data(config, "skip")
        assert Path("parts/part1.pbin").read_bytes() == before
        pack_encoded_data(config, "override")
        assert Path("parts/part1.pbin").read_bytes() == Path("parts/part0.pbin").read_bytes()


class TestNothingIsLost:
    def test_lines_without_a_token_are_named(self, indexed: Path, golden: Path) -> None:
        done = pack_encoded_data(config_of("pack_with_empty_b1"))
        assert len(documents_in("pbin/docs_with_empty.b1.pbin")) == 36
        (difference,) = done.differences
        for line in (5, 21, 22, 40):
            assert f"line {line} " in difference

    def test_lines_of_a_wrong_type_are_named(self, indexed: Path) -> None:
        done = pack_encoded_data(config_of("pack_bad_types_b1"))
        assert len(documents_in("pbin/docs_bad_types.b1.pbin")) == 2
        assert "null" in done.differences[0]

    def test_many_are_counted(self, indexed: Path) -> None:
        rows = [{"text": "a" if n % 10 == 0 else ""} for n in range(30)]
        Path("many.jsonl").write_text("\n".join(map(json.dumps, rows)))
        create_raw_data_index(Path("many.jsonl"))
        done = pack_encoded_data(config_of("pack_part0", src_path="many.jsonl", index_path=None, dst_path="m.pbin"))
        assert "27 lines" in done.differences[0]
        assert "22 more" in done.differences[0]

    def test_no_document_at_all_is_an_error(self, indexed: Path) -> None:
        with pytest.raises(PrepareError, match="no document"):
            pack_encoded_data(config_of("pack_part0", jq_pattern=".nothing", dst_path="m.pbin"))
        assert not Path("m.pbin").exists()


class TestIndex:
    def test_only_lines_of_the_index_are_packed(self, indexed: Path) -> None:
        lines = Path("inputs/part0.jsonl").read_bytes().splitlines(keepends=True)
        Path("some.jsonl").write_bytes(b"".join([*lines[:2], b"broken\n", *lines[2:4], b"\n", *lines[4:]]))
        from tests.internals import build_index

        build_index("some.jsonl", on_error="skip")
        done = pack_encoded_data(config_of("pack_part0", src_path="some.jsonl", index_path=None, dst_path="m.pbin"))
        assert Path("m.pbin").read_bytes() == Path("parts/part0.pbin").read_bytes()
        assert done.notes == ["2 lines aren't in the index and are skipped"]

    def test_a_file_that_changed_is_refused(self, indexed: Path) -> None:
        data = Path("inputs/part0.jsonl").read_bytes()
        Path("inputs/part0.jsonl").write_bytes(data[:200] + b"more text" + data[200:])
        with pytest.raises(Corrupt, match=r"penstock index"):
            pack_encoded_data(config_of("pack_part0", dst_path="m.pbin"))
        assert not Path("m.pbin").exists()

    def test_one_changed_line_among_many(self, indexed: Path) -> None:
        lines = [json.dumps({"text": f"line {n}"}) for n in range(1000, 3000)]
        Path("a.jsonl").write_text("\n".join(lines))
        create_raw_data_index(Path("a.jsonl"))
        data = bytearray(Path("a.jsonl").read_bytes())
        end = data.index(b"\n", 20_001)
        data[end], data[end - 4] = data[end - 4], data[end]  # a line end has moved
        Path("a.jsonl").write_bytes(bytes(data))
        with pytest.raises(Corrupt, match=r"2 of 2000 entries"):
            pack_encoded_data(config_of("pack_part0", src_path="a.jsonl", index_path=None, dst_path="m.pbin"))


def test_texts_that_end_in_the_eod_token_are_cut_like_theirs(indexed: Path) -> None:
    """Cutting comes before the EOD token, which is then put behind texts that do not end in one."""
    eod = "<|eod|>"
    texts = ["^$^$", "^$^$^$", f"^$^{eod}", f"^$^{eod}{eod}", f"{eod}", f"^${eod}$$", "^", f"^$^$^{eod}"]
    Path("a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    create_raw_data_index(Path("a.jsonl"))
    config = with_tokenizer("pack_part0", truncation=True, max_length=4)
    config["settings"] |= {"src_path": "a.jsonl", "index_path": None, "dst_path": "a.pbin"}
    pack_encoded_data(config)
    a, b = 3, 4
    assert documents_in("a.pbin") == [
        [a, b, a, b, EOD],
        [a, b, a, b, EOD],
        [a, b, a, EOD],
        [a, b, a, EOD],
        [EOD],
        [a, b, EOD, b, EOD],
        [a, EOD],
        [a, b, a, b, EOD],
    ]
