"""All settings in one table: command-line options, else environment variables, else a settings file.

The settings file is `PENSTOCK_SETTINGS`, else `penstock/settings.toml` in `$XDG_CONFIG_HOME` or `~/.config`. An empty
`PENSTOCK_SETTINGS` disables it. It is read once per process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from penstock._naming import nearest
from penstock.errors import ConfigError, FormatError, NotFound

FILE_VARIABLE = "PENSTOCK_SETTINGS"

_MOST_BYTES = 1 << 20
Kind = Literal["text", "folder", "number", "whole number", "flag"]
_TYPES: Mapping[Kind, tuple[type, ...]] = {
    "text": (str,),
    "folder": (str,),
    "number": (int, float),
    "whole number": (int,),
    "flag": (bool,),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        variable: the environment variable.
        sets: description of its effect.
        key: key in the settings file; None for secrets and variables of other software.
        option: command-line option, which has priority.
        kind: type of its value in the file.
        choices: allowed values, if they are few.
    """

    variable: str
    sets: str
    key: str | None = None
    option: str | None = None
    kind: Kind = "text"
    choices: tuple[str, ...] = ()


_REMOTE: tuple[tuple[str, Kind, str], ...] = (
    ("gap_bytes", "whole number", "Ranges of a remote file at most this far apart are read in one request."),
    ("part_bytes", "whole number", "Longer reads are split into parallel requests of this size."),
    ("requests", "whole number", "Parallel requests per process."),
    ("tries", "whole number", "Attempts per request before it fails."),
    ("backoff_s", "number", "Seconds before the first retry."),
    ("timeout_s", "number", "Seconds without data after which an attempt fails."),
    ("deadline_s", "number", "Seconds without a response, over all attempts, after which a request fails."),
    ("spread_s", "number", "Seconds over which the hosts of a job spread their first requests; 0: no delay."),
)

SETTINGS: tuple[Setting, ...] = (
    Setting(FILE_VARIABLE, "The settings file; empty for none. Default: `~/.config/penstock/settings.toml`."),
    Setting(
        "PENSTOCK_CACHE", "The cache folder. Default: `penstock` in `$XDG_CACHE_HOME` or `~/.cache`.", "cache",
        kind="folder",
    ),
    Setting(
        "PENSTOCK_CACHE_BYTES", "Maximum size of cached copies of remote files.", "cache_bytes", kind="whole number"
    ),
    Setting("PENSTOCK_DEBUG", "Show tracebacks.", "debug", "--debug", "flag"),
    Setting(
        "PENSTOCK_PROGRESS", "How to show progress.", "progress", "--progress",
        choices=("auto", "plain", "json", "none"),
    ),
    Setting("NO_COLOR", "Disable colours.", "no_color", "--no-color", "flag"),
    *(Setting(f"PENSTOCK_REMOTE_{name.upper()}", sets, f"remote_{name}", kind=kind) for name, kind, sets in _REMOTE),
    Setting("PENSTOCK_URL_AUTH", "`user:password@host` for URLs without credentials; separate several with spaces."),
    Setting("TMPDIR", "The folder for temporary files, such as packed standard input."),
    Setting("HF_HOME", "The local Hugging Face cache, which is searched for `--tokenizer gpt2`."),
    Setting("AWS_ENDPOINT_URL", "Endpoint of an S3-compatible store."),
    Setting("AWS_ALLOW_HTTP", "Allow access without TLS."),
    Setting("AWS_REGION", "Region of the buckets."),
    Setting("RAY_ADDRESS", "The cluster that `--executor ray` joins.", option="--executor ray:HOST:PORT"),
    Setting("SLURM_ARRAY_TASK_ID", "I of `--part auto/N`.", option="--part I/N"),
    Setting("JOB_COMPLETION_INDEX", "I of `--part auto/N`, if Slurm doesn't set it.", option="--part I/N"),
)  # fmt: skip

SECRETS = frozenset({"PENSTOCK_URL_AUTH"})
"""Settings for which only their existence is shown."""

_BY_VARIABLE = {one.variable: one for one in SETTINGS}


def setting(variable: str) -> str | None:
    """Return the value in the environment or the settings file; None if unset, or if a flag is off.

    Raises:
        ConfigError: the value is invalid, or the settings file has an unknown key.
        NotFound: `PENSTOCK_SETTINGS` isn't an existing file.
        FormatError: the settings file isn't TOML.
    """
    value, where = said_by(variable)
    choices = _BY_VARIABLE[variable].choices
    if value and choices and value not in choices:
        raise ConfigError(f"invalid value for {variable}", path=where, found=repr(value), expected=" | ".join(choices))
    return value or None


def said_by(variable: str) -> tuple[str | None, str | None]:
    """Return `(value, origin)`: origin is `"the environment"`, or the path of the settings file; Nones if unset.

    Raises as `setting`.
    """
    if variable in os.environ:
        return os.environ[variable], "the environment"
    path, key = settings_path(), _BY_VARIABLE[variable].key
    if path is None or key is None:
        return None, None
    value = _read(path, FILE_VARIABLE in os.environ).get(key)
    return (None, None) if value is None else (value, path)


def settings_path() -> str | None:
    """Return the path of the settings file, which may not exist; None if disabled."""
    given = os.environ.get(FILE_VARIABLE)
    if given is not None:
        return os.path.expanduser(given) or None
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(home, "penstock", "settings.toml")


def has_settings_file() -> bool:
    path = settings_path()
    return path is not None and os.path.exists(path)


@cache
def _read(path: str, is_named: bool) -> Mapping[str, str]:
    """Return the settings in a file by variable; empty if the file doesn't exist, unless it was named explicitly."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        if is_named:
            raise NotFound(
                "the settings file doesn't exist", path=path, hint=f"Fix {FILE_VARIABLE}, or unset it"
            ) from None
        return {}
    if len(data) > _MOST_BYTES:
        raise FormatError("not a settings file", path=path, found="more than 1 MiB")
    import tomllib  # only needed with a file

    try:
        found = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise FormatError("the settings file is not valid TOML", path=path, found=str(error)) from None
    known = {one.key: one for one in SETTINGS if one.key is not None}
    return {key: text for key, value in found.items() if (text := _text(path, key, value, known)) is not None}


def _text(path: str, key: str, value: Any, known: Mapping[str, Setting]) -> str | None:
    """Return a value of the file as text, like its variable; None for a flag that is off."""
    one = known.get(key)
    if one is None:
        close = nearest(key, known)
        hint = f"Did you mean {close!r}?" if close else "`penstock doctor` lists all settings"
        raise ConfigError(f"the settings file has an unknown key {key!r}", path=path, hint=hint)
    is_right = isinstance(value, _TYPES[one.kind]) and (one.kind == "flag" or not isinstance(value, bool))
    if not is_right or (one.choices and value not in one.choices):
        expected = " | ".join(one.choices) or {"flag": "true | false", "folder": "a path"}.get(one.kind, one.kind)
        raise ConfigError(
            f"invalid value for {key!r} in the settings file", path=path, found=repr(value), expected=expected
        )
    if one.kind == "folder":
        folder = os.path.expanduser(str(value))
        if not os.path.isabs(folder):
            raise ConfigError(f"{key!r} in the settings file is not an absolute path", path=path, found=folder)
        return folder
    if one.kind == "flag":
        return "1" if value else None
    return str(value)
