"""Settings of S3 from shared files and from other tools' variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.errors import ConfigError
from penstock.store import _credentials
from penstock.store._credentials import s3_settings
from penstock.store._objects import Objects
from penstock.store._requests import RemoteOptions

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
    monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
    with pytest.raises(ConfigError, match="Account") as caught:
        Objects("az://container", RemoteOptions())
    assert caught.value.path == "az://container"
    monkeypatch.setenv("AZURE_ACCOUNT_NAME", "me")
    monkeypatch.setenv("AZURE_ACCOUNT_ACCESS_KEY", "a2V5")
    Objects("az://container", RemoteOptions())
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    Objects("gs://bucket", RemoteOptions())


# --- where nothing is set ------------------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The clients that would have been made; nothing is asked of anybody."""
    found: list[str] = []
    for name in ("S3Store", "GCSStore", "AzureStore"):
        monkeypatch.setattr(f"obstore.store.{name}", lambda place, **_: found.append(place))
    for name in [name for cloud in _credentials._CLOUDS.values() for name in cloud.variables]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_credentials, "_FIRMWARE", (str(tmp_path / "nowhere"), str(tmp_path / "vendor")))
    return found


@pytest.mark.parametrize(
    ("base", "hint"),
    [
        ("s3://bucket", "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("gs://bucket", "Set GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://container", "Set AZURE_STORAGE_ACCOUNT_KEY"),
        ("azure://container", "Set AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_no_client_is_made_without_credentials(base: str, hint: str, made: list[str]) -> None:
    with pytest.raises(ConfigError, match="no credentials found for") as caught:
        Objects(base, RemoteOptions())
    assert hint in str(caught.value)
    assert made == []


@pytest.mark.parametrize(
    ("base", "variable"),
    [
        ("s3://b", "AWS_ACCESS_KEY_ID"),
        ("s3://b", "AWS_SKIP_SIGNATURE"),
        ("s3://b", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        ("s3://b", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        ("s3://b", "AWS_METADATA_ENDPOINT"),
        ("gs://b", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://b", "AZURE_STORAGE_SAS_TOKEN"),
        ("az://b", "AZURE_FEDERATED_TOKEN_FILE"),
    ],
)
def test_each_way_to_have_some(base: str, variable: str, made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "x")
    Objects(base, RemoteOptions())
    assert made == ["b"]


def test_files_with_some(home: Path, made: list[str]) -> None:
    (home / "credentials").write_text("[default]\naws_access_key_id = D\naws_secret_access_key = d\n")
    Objects("s3://b", RemoteOptions())
    folder = home.parent / ".config" / "gcloud"
    folder.mkdir(parents=True)
    (folder / "application_default_credentials.json").write_text("{}")
    Objects("gs://b", RemoteOptions())
    assert made == ["b", "b"]


@pytest.mark.parametrize(
    ("base", "vendor"), [("s3://b", "Amazon EC2\n"), ("gs://b", "Google\n"), ("az://b", "Microsoft Corporation\n")]
)
def test_machines_of_the_cloud_ask(
    base: str, vendor: str, made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
    (tmp_path / "nowhere").write_text("Xen\n")
    (tmp_path / "vendor").write_text("QEMU\n")
    with pytest.raises(ConfigError, match="no credentials found"):
        Objects(base, RemoteOptions())
    (tmp_path / "vendor").write_text(vendor)
    Objects(base, RemoteOptions())
    assert made == ["b"]


def test_unless_they_are_told_not_to(made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vendor").write_text("Amazon EC2\n")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "True")
    with pytest.raises(ConfigError, match="no credentials found"):
        Objects("s3://b", RemoteOptions())
    assert made == []


def test_the_command_says_it(made: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("info s3://bucket-of-nobody/x", "merge a.pbin s3://bucket-of-nobody/x -o s3://bucket-of-nobody/y"):
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        assert ended.value.code in (9, 10)
    assert "no credentials found for s3://. Set AWS_ACCESS_KEY_ID" in capsys.readouterr().err
    assert made == []
