"""Settings: the command line before the environment before the file; what the file does not know is refused."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock import _settings
from penstock._settings import SETTINGS, said_by, setting
from penstock.cli.main import main
from penstock.errors import ConfigError, FormatError, NotFound, PenstockError
from penstock.store._requests import RemoteOptions
from penstock.store.derived import cache_folder


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "settings.toml"
    monkeypatch.setenv("PENSTOCK_SETTINGS", str(path))
    monkeypatch.delenv("PENSTOCK_CACHE", raising=False)
    _settings._read.cache_clear()
    return path


def test_the_environment_comes_before_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(
        'cache = "/of/file"\ncache_bytes = 5\nremote_tries = 3\nremote_timeout_s = 1.5\nprogress = "json"\n'
    )
    assert (cache_folder(), said_by("PENSTOCK_CACHE")) == ("/of/file", ("/of/file", str(file)))
    assert (RemoteOptions.from_environment().tries, RemoteOptions.from_environment().timeout_s) == (3, 1.5)
    monkeypatch.setenv("PENSTOCK_CACHE", "/of/environment")
    monkeypatch.setenv("PENSTOCK_REMOTE_TRIES", "7")
    assert (cache_folder(), RemoteOptions.from_environment().tries) == ("/of/environment", 7)


def test_the_command_line_comes_first(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')

    def lines(*more: str) -> list[str]:
        with pytest.raises(SystemExit) as ended:
            main(["find", str(tmp_path / "a.jsonl"), "--where", "a == 1", *more])
        assert ended.value.code == 0
        return capsys.readouterr().err.splitlines()

    file.write_text('progress = "json"\ncache = "~/nowhere/penstock"\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    assert json.loads(lines()[-1])["label"] == "find"
    assert (tmp_path / "nowhere/penstock").is_dir()
    assert lines("--progress", "none") == []
    monkeypatch.setenv("PENSTOCK_PROGRESS", "none")
    assert lines() == []
    assert lines("--progress", "json") != []
    monkeypatch.setenv("PENSTOCK_PROGRESS", "loud")
    with pytest.raises(SystemExit) as ended:
        main(["find", str(tmp_path / "a.jsonl"), "--where", "a == 1"])
    assert (ended.value.code, "auto | plain" in capsys.readouterr().err) == (10, True)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ('cach = "/x"', ConfigError, ("unknown key 'cach'", "Did you mean 'cache'?")),
        ("xyzzy = 1", ConfigError, ("unknown key 'xyzzy'", "penstock doctor")),
        ('url_auth = "me:secret@host"', ConfigError, ("unknown key 'url_auth'",)),
        ("cache = 5", ConfigError, ("'cache'", "a path")),
        ('cache = "relative"', ConfigError, ("is not an absolute path",)),
        ('progress = "loud"', ConfigError, ("'loud'", "auto | plain | json | none")),
        ("debug = 1", ConfigError, ("true | false",)),
        ("remote_tries = true", ConfigError, ("whole number",)),
        ("remote_tries = 1.5", ConfigError, ("whole number",)),
        ("cache = ", FormatError, ("not valid TOML",)),
        ("\x00", FormatError, ("not valid TOML",)),
        ("a" * (1 << 20 | 1), FormatError, ("more than 1 MiB",)),
    ],
)
def test_what_the_file_can_not_say_is_refused(
    file: Path, text: str, kind: type[PenstockError], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    with pytest.raises(kind) as raised:
        setting("PENSTOCK_CACHE")
    assert [word for word in (*words, str(file)) if word not in str(raised.value)] == []
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    assert ended.value.code == kind.exit_status
    assert capsys.readouterr().err.startswith(f"penstock: {file}: ")


def test_a_file_that_is_named_must_be_there(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="the settings file doesn't exist"):
        cache_folder()
    monkeypatch.delenv("PENSTOCK_SETTINGS")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert setting("PENSTOCK_CACHE") is None
    os.makedirs(tmp_path / "penstock")
    (tmp_path / "penstock/settings.toml").write_text('cache = "/x"')
    _settings._read.cache_clear()
    assert setting("PENSTOCK_CACHE") == "/x"
    monkeypatch.setenv("PENSTOCK_SETTINGS", "")
    assert setting("PENSTOCK_CACHE") is None


def test_doctor_shows_each_value_and_who_says_it(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file.write_text(f'cache = "{tmp_path}/cache"\nno_color = false\n')
    monkeypatch.setenv("PENSTOCK_REMOTE_TRIES", "7")
    monkeypatch.setenv("PENSTOCK_URL_AUTH", "me:secret@host")

    def told(*line: str) -> str:
        with pytest.raises(SystemExit):
            main(["doctor", *line])
        return capsys.readouterr().out

    found: Any = json.loads(told("--json"))
    assert list(found["settings"]) == [one.variable for one in SETTINGS]
    assert found["settings"]["PENSTOCK_CACHE"] == f"{tmp_path}/cache"
    assert (
        found["settings_from"].items()
        >= {
            "PENSTOCK_CACHE": str(file),
            "PENSTOCK_REMOTE_TRIES": "the environment",
        }.items()
    )
    assert "NO_COLOR" not in found["settings_from"]
    assert "secret" not in told()
    assert f"{tmp_path}/cache, from {file}" in told()


def test_the_table_names_each_variable_of_ours_that_the_code_reads() -> None:
    root = Path(ps.__file__).parent
    text = "".join(path.read_text() for path in root.rglob("*.py"))
    known = {one.variable for one in SETTINGS} | {"PENSTOCK_COMPLETE", "PENSTOCK_REMOTE_"}
    assert set(re.findall(r"PENSTOCK_[A-Z_]+", text)) - known == set()
