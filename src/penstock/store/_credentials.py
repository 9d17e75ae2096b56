"""S3 settings that obstore doesn't read itself: shared files and variables of other tools.

obstore reads `AWS_*` variables, web identities, container and instance roles. This module adds the shared credentials
and config files, and two variables of MosaicML Streaming, `S3_ENDPOINT_URL` and
`MOSAICML_STREAMING_AWS_REQUESTER_PAYS`.

Without any setting, obstore requests the cloud's metadata address to find the role of the machine. Outside the cloud
nothing answers there, or an unrelated server does. So this is only done on machines whose firmware names the cloud.
"""

from __future__ import annotations

import configparser
import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError

_SHARED = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
_OTHERS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)


@dataclass(frozen=True, slots=True)
class _Cloud:
    """Sources of a cloud's credentials: variables, a file, and machines whose firmware has one of these names."""

    variables: tuple[str, ...]
    file: str | None
    firmware: tuple[str, ...]
    hint: str


_CLOUDS = {
    "s3": _Cloud(
        (*_OTHERS, "AWS_METADATA_ENDPOINT"),
        None,
        ("Amazon EC2", "ec2"),
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; AWS_SKIP_SIGNATURE=true for public buckets",
    ),
    "gs": _Cloud(
        (
            *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
            *("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SKIP_SIGNATURE", "SERVICE_ACCOUNT"),
        ),
        "~/.config/gcloud/application_default_credentials.json",
        ("Google",),
        "Set GOOGLE_APPLICATION_CREDENTIALS, run `gcloud auth application-default login`, or set "
        "GOOGLE_SKIP_SIGNATURE=true for a public bucket",
    ),
    "az": _Cloud(
        (
            *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY"),
            *("AZURE_ACCOUNT_ACCESS_KEY", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN"),
            *("AZURE_STORAGE_TOKEN", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET", "AZURE_CLIENT_ID"),
            *("AZURE_FEDERATED_TOKEN_FILE", "AZURE_MSI_ENDPOINT", "AZURE_IDENTITY_ENDPOINT", "IDENTITY_ENDPOINT"),
            *("AZURE_USE_AZURE_CLI", "AZURE_SKIP_SIGNATURE", "AZURE_STORAGE_USE_EMULATOR"),
        ),
        None,
        ("Microsoft Corporation",),
        "Set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN; or AZURE_SKIP_SIGNATURE=true for public containers",
    ),
}
_CLOUDS["azure"] = _CLOUDS["az"]
_FIRMWARE = ("/sys/class/dmi/id/sys_vendor", "/sys/class/dmi/id/board_asset_tag", "/sys/hypervisor/uuid")


def require_credentials(scheme: str, url: str, settings: Mapping[str, Any]) -> None:
    """Raise `ConfigError` without credentials, unless this is a machine of that cloud; sends no request."""
    cloud = _CLOUDS.get(scheme)
    if cloud is None or "access_key_id" in settings or any(os.environ.get(name) for name in cloud.variables):
        return
    if cloud.file is not None and os.path.exists(os.path.expanduser(cloud.file)):
        return
    is_asked = scheme != "s3" or os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true"
    if not (is_asked and any(text.startswith(cloud.firmware) for text in _firmware())):
        raise ConfigError(f"no credentials found for {scheme}://", path=url, hint=cloud.hint)


def _firmware() -> Iterator[str]:
    """Yield the manufacturer fields of this machine's firmware."""
    for path in _FIRMWARE:
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            yield file.read(200).strip()


def s3_settings(bucket: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"copy_if_not_exists": "multipart"}
    endpoint = os.environ.get("S3_ENDPOINT_URL")
    if endpoint:
        settings["endpoint"] = endpoint
    if bucket in os.environ.get("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", "").split(","):
        settings["request_payer"] = True
    profile = os.environ.get("AWS_PROFILE", "default")
    if not any(name in os.environ for name in _OTHERS):
        found = _section("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", profile)
        settings |= {ours: found[name] for name, ours in _SHARED.items() if name in found}
    if "AWS_REGION" not in os.environ and "AWS_DEFAULT_REGION" not in os.environ:
        section = profile if profile == "default" else f"profile {profile}"
        region = _section("AWS_CONFIG_FILE", "~/.aws/config", section).get("region")
        settings |= {"region": region} if region else {}
    return settings


def _section(variable: str, usual_path: str, name: str) -> dict[str, str]:
    """Return a section of an INI file, empty if it doesn't exist."""
    parser = configparser.RawConfigParser()
    try:
        parser.read(os.environ.get(variable) or os.path.expanduser(usual_path))
    except (configparser.Error, OSError, UnicodeDecodeError):
        return {}
    return dict(parser[name]) if name in parser else {}
