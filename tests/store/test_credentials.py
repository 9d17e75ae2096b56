"""Settings of S3 from shared files and from other tools' variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.store._credentials import s3_settings
from penstock.store._objects import Objects
from penstock.store._remote_options import RemoteOptions

NAMES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *("AWS_ENDPOINT_URL", "S3_ENDPOINT_URL", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    return tmp_path / ".aws"


def test_nothing_is_set() -> None:
    assert s3_settings("b") == {"copy_if_not_exists": "multipart"}


def test_shared_files(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "credentials").write_text(
        "[default]\naws_access_key_id = D\naws_secret_access_key = d%s\n"
        "[other]\naws_access_key_id = O\naws_secret_access_key = o\naws_session_token = t\n"
    )
    (home / "config").write_text("[default]\nregion = eu-west-1\n[profile other]\nregion = us-west-2\n")
    found = s3_settings("b")
    assert (found["access_key_id"], found["secret_access_key"], found["region"]) == ("D", "d%s", "eu-west-1")
    monkeypatch.setenv("AWS_PROFILE", "other")
    found = s3_settings("b")
    assert (found["access_key_id"], found["session_token"], found["region"]) == ("O", "t", "us-west-2")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "E")
    monkeypatch.setenv("AWS_REGION", "x")
    assert not {"access_key_id", "region"} & s3_settings("b").keys()


def test_broken_files_are_as_none(home: Path) -> None:
    (home / "credentials").write_bytes(b"\xff no section")
    assert s3_settings("b") == {"copy_if_not_exists": "multipart"}


def test_names_of_other_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_ENDPOINT_URL", "http://localhost:1")
    monkeypatch.setenv("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", "a,b")
    assert s3_settings("b")["request_payer"] is True
    assert "request_payer" not in s3_settings("c")
    assert s3_settings("b")["endpoint"] == "http://localhost:1"


def test_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigError, match="Account") as caught:
        Objects("az://container", RemoteOptions())
    assert caught.value.path == "az://container"
    monkeypatch.setenv("AZURE_ACCOUNT_NAME", "me")
    monkeypatch.setenv("AZURE_ACCOUNT_ACCESS_KEY", "a2V5")
    Objects("az://container", RemoteOptions())
    Objects("gs://bucket", RemoteOptions())
