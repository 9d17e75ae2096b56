"""Words of 10^5 characters in options, settings and data: one short line says what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.internals import (
    PART_CHARACTERS,
    RemoteOptions,
    choose_columns,
    current,
    main,
    number_of,
    numeric_order,
    parse_size,
    redact,
    replace,
    sample_type_named,
)
from tests.internals import converted_sample_digest as sample_digest

from penstock.compat.streaming.util import bytes_to_int, number_abbrev_to_int
from penstock.errors import ConfigError, PenstockError

LONG = 100_000
DIGITS = "9" * LONG


def ended(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


def test_a_value_in_a_message_is_cut_and_a_path_is_not() -> None:
    path = "/p" * 2000
    told = str(
        PenstockError("no good: " + "(" * LONG, path=path, found="x" * LONG, expected=["y" * LONG], hint="h" * LONG)
    )
    assert told.startswith(f"{path}: no good: ((")
    assert told.endswith("h" * 9)
    assert len(told) < len(path) + 4 * (PART_CHARACTERS + 100)


def test_no_cut_goes_through_a_secret() -> None:
    url = "s3://user:" + "p" * LONG + "@host/x"
    assert "ppp" not in str(PenstockError(f"what {url}", path=url, found=[url], expected={"a": url}, hint=url))


@pytest.mark.parametrize("word", ["(" * LONG, DIGITS, f"s3://{')' * LONG}x"])
def test_wrong_usage(word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []
    plain = current("plain_numbers")
    replace(monkeypatch, "plain_numbers", lambda text: seen.append(len(text)) or plain(text))  # pyright: ignore
    assert ended("info", "x", "--progress", word) == 2
    assert max(seen) < PART_CHARACTERS + 100  # its patterns take the square of that
    assert len(capsys.readouterr().err) < 2 * PART_CHARACTERS


def test_a_url_of_brackets(confined: Callable[..., Any]) -> None:
    url = f"s3://host/{')' * 3 * LONG}x"
    assert confined(lambda: redact(url) == url) is True


def test_a_size_of_many_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    assert ended("cache", "--trim", DIGITS) == 0
    for parse in (parse_size, number_of, number_abbrev_to_int, bytes_to_int, sample_type_named):
        with pytest.raises(ConfigError):
            parse(DIGITS)
    for text in ("9" * 400, "0", DIGITS):
        monkeypatch.setenv("PENSTOCK_REMOTE_REQUESTS", text)
        with pytest.raises(ConfigError, match="REQUESTS"):
            RemoteOptions.from_environment()


def test_a_key_and_a_share_of_many_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n')
    assert ended("head", str(path), "--key", DIGITS) == 9
    for share in (f"0/{DIGITS}", f"{DIGITS}/2"):
        assert ended("verify", str(path), "--part", share) == 2
    assert len(capsys.readouterr().err) < 5 * PART_CHARACTERS


def test_names_with_numbers_of_any_length_are_in_order() -> None:
    names = ["a", "a/1", "a/01", "a/2", "a/10", f"a/1{'0' * LONG}", "a/x"]
    assert sorted(names, key=numeric_order) == ["a", "a/01", "a/1", *names[3:]]


def test_options_of_tars_for_what_is_no_tar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n')
    for option in ("--pattern", "--maxcount"):
        assert ended("shuffle", str(path), "-o", str(tmp_path / "b.jsonl"), "--seed", "1", option, "7") == 10
        assert f"unknown option {option[2:]}:" in capsys.readouterr().err


def calls(do: Callable[[], object]) -> int:
    """How many functions are called, those in C too."""
    count = 0

    def note(frame: object, event: str, what: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        do()
    finally:
        sys.setprofile(None)
    return count


def test_a_row_of_many_columns_takes_few_calls_for_each() -> None:
    few, many = ({str(n): n for n in range(columns)} for columns in (1000, 4000))

    def work(row: dict[str, int]) -> None:
        choose_columns("jsonl", "jsonl", {}, [row], None, "x")
        sample_digest(0, row)

    work(few)  # what is imported once
    each = (calls(lambda: work(many)) - calls(lambda: work(few))) / 3000
    assert each < 70
