"""`penstock doctor`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._output import emit, human_bytes, json_option


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Show versions, extras, plug-ins, limits, the cache and settings of this machine."""
    from penstock.cli._machine import facts

    found = facts()
    emit(found, as_json=as_json, text=lambda: _text(found))


def _text(found: dict[str, Any]) -> str:
    cache = found["cache"]
    rows = [(name, version or "not installed") for name, version in found["versions"].items()]
    missing = [f"{extra} ({', '.join(lacks)})" for extra, lacks in found["extras"].items() if lacks]
    rows += [("extras", ", ".join(extra for extra, lacks in found["extras"].items() if not lacks) or "none")]
    rows += [("missing extras", ", ".join(missing) or "none"), ("engines", ", ".join(found["engines"]) or "none")]
    rows += [("plug-ins", ", ".join(map(_plug_in, found["plug_ins"])) or "none")]
    rows += [("cores", str(found["cores"])), ("open files", _limit(found["limits"]["open_files"]))]
    rows += [("memory limit", _limit(found["limits"]["memory_bytes"], human_bytes))]
    rows += [("this directory", f"{found['folder']['path']} on {found['folder']['file_system']}")]
    if cache["path"] is not None:
        rows += [("cache", f"{cache['path']} on {cache['file_system']}, {human_bytes(cache['size_bytes'])}")]
        rows += [("free for the cache", human_bytes(cache["free_bytes"]))]
    rows += [("problem", fault) for fault in found["faults"]]
    file = found["settings_file"]
    rows += [("settings file", f"{file['path'] or 'none'}{'' if file['is_there'] else ' (missing)'}")]
    told = found["settings_from"]
    settings = [(name, _said(value, told.get(name))) for name, value in found["settings"].items()]
    width = max(len(name) for name, _ in [*rows, *settings])
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in [*rows, *settings])


def _said(value: str | None, where: str | None) -> str:
    return "not set" if where is None else f"{value or 'empty'}, from {where}"


def _plug_in(found: dict[str, str | None]) -> str:
    fault = f": {found['fault']}" if found["fault"] else ""
    return f"{found['kind']} {found['name']} from {found['package'] or 'an unknown package'}{fault}"


def _limit(value: int | None, shown: Any = "{:,}".format) -> str:
    return "no limit" if value is None else shown(value)
