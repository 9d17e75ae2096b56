"""The exception tree: codes, exit statuses, messages, and the way across process borders."""

from __future__ import annotations

import pickle

import pytest

from penstock import errors
from penstock.errors import (
    ConfigError,
    CookError,
    Corrupt,
    Denied,
    FormatError,
    MissingExtra,
    NotFound,
    PenstockError,
    PrepareError,
    ResumeMismatch,
    TooLarge,
    Truncated,
    Unreachable,
    UnsafeData,
    Unsupported,
)


def tree(kind: type[PenstockError]) -> list[type[PenstockError]]:
    return [kind, *(one for child in kind.__subclasses__() for one in tree(child) if one.__module__ == errors.__name__)]


KINDS = tree(PenstockError)


def test_codes_and_exit_statuses_are_pinned() -> None:
    assert {kind.__name__: (kind.code, kind.exit_status) for kind in KINDS} == {
        "PenstockError": ("penstock", 3),
        "FormatError": ("format", 4),
        "Truncated": ("truncated", 5),
        "Corrupt": ("corrupt", 6),
        "Unsupported": ("unsupported", 7),
        "TooLarge": ("too-large", 8),
        "NotFound": ("not-found", 9),
        "ConfigError": ("config", 10),
        "ResumeMismatch": ("resume-mismatch", 11),
        "UnsafeData": ("unsafe-data", 12),
        "MissingExtra": ("missing-extra", 13),
        "PrepareError": ("prepare", 14),
        "Unreachable": ("unreachable", 15),
        "Denied": ("denied", 16),
        "CookError": ("cook", 17),
        "Excluded": ("excluded", 19),
    }


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (Truncated, FormatError),
        (Corrupt, FormatError),
        (Unsupported, FormatError),
        (TooLarge, FormatError),
        (CookError, FormatError),
        (NotFound, FileNotFoundError),
        (NotFound, KeyError),
        (ConfigError, ValueError),
        (MissingExtra, ImportError),
        (Unreachable, OSError),
        (Denied, Unreachable),
        (Denied, PermissionError),
        (ResumeMismatch, PenstockError),
        (UnsafeData, PenstockError),
        (PrepareError, PenstockError),
    ],
)
def test_tree(kind: type, base: type) -> None:
    assert issubclass(kind, base)
    assert issubclass(kind, PenstockError)


def test_tree_in_the_docstring() -> None:
    assert errors.__doc__ is not None
    named = set(errors.__doc__.split("```")[1].replace("─", " ").split())
    assert {kind.__name__ for kind in KINDS} <= named


def test_message_says_what_where_found_expected_and_what_to_do() -> None:
    error = Truncated(
        "the file ends early",
        path="a/b.pbin",
        offset_bytes=12,
        found="3 bytes",
        expected="8 bytes",
        hint="Copy it again",
    )
    assert str(error) == "a/b.pbin: the file ends early at byte 12: found 3 bytes, expected 8 bytes. Copy it again"


def test_message_leaves_out_what_is_not_known() -> None:
    assert str(ConfigError("unknown option")) == "unknown option"
    assert str(Corrupt("a wrong value", offset_bytes=0, found=0)) == "a wrong value at byte 0: found 0"
    assert str(NotFound("no such key", path="a", hint="Look again")) == "a: no such key. Look again"


@pytest.mark.parametrize("kind", KINDS)
def test_pickled_copy_is_whole(kind: type[PenstockError]) -> None:
    error = kind("what", path="p", offset_bytes=1 << 40, found=3, expected=(1, 2), hint="do")
    error.__notes__ = ["a note"]
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert again.args == error.args


def test_path_may_be_a_path(tmp_path) -> None:
    assert NotFound("missing", path=tmp_path).path == str(tmp_path)


def test_a_megabyte_of_the_datas_own_does_not_hide_the_message() -> None:
    text = str(Corrupt("a name", path="x", found="1," * 500_000, hint="Write it again"))
    assert len(text) < 20_000
    assert text.startswith("x: a name: found 1,1,")
    assert text.endswith("1,1,. Write it again")
    assert "characters) …" in text
