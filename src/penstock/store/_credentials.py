"""Settings of S3 beside the environment variables that obstore reads itself: shared files, and others' names.

obstore takes `AWS_*` variables, web identities, container and instance roles. Here: the shared credentials and config
files, and what MosaicML Streaming's users set, `S3_ENDPOINT_URL` and `MOSAICML_STREAMING_AWS_REQUESTER_PAYS`.
"""

from __future__ import annotations

import configparser
import os
from typing import Any

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


def s3_settings(bucket: str) -> dict[str, Any]:
    """Keyword arguments of `obstore.store.S3Store` for a bucket."""
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
    """One section of an INI file; empty where there is none."""
    parser = configparser.RawConfigParser()
    try:
        parser.read(os.environ.get(variable) or os.path.expanduser(usual_path))
    except (configparser.Error, OSError, UnicodeDecodeError):
        return {}
    return dict(parser[name]) if name in parser else {}
