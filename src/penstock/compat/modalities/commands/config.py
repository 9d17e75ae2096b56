r"""Reader of Modalities' YAML files, by its rules, without OmegaConf.

| in the file | gives |
|---|---|
| `${a.b}`, `${a[0]}`, `${.b}`, `${..b}` | another value; leading dots are relative to the value's own level |
| `${cuda_env:X}` | an environment variable; LOCAL_RANK, RANK and WORLD_SIZE as numbers |
| `${modalities_env:config_file_path}`, `…:config_folder_path` | the path of the file, and of its folder |
| `${node_env:num_cpus}` | the number of processors; None for any other name |
| `${oc.env:X}`, `${oc.env:X,default}` | an environment variable |
| `\${…}` | these characters themselves |

A value that is a single interpolation keeps the type of the referenced value. Interpolations may be nested. Duplicate
keys are an error, dates are texts, and `1e3` is a number, as in OmegaConf.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from penstock._limits import count_in
from penstock._regular import open_regular
from penstock.errors import ConfigError, NotFound, PenstockError, UnsafeData
from penstock.store.place import local_path

Key = str | int

_MOST_BYTES = 1 << 24
_MERGE = "tag:yaml.org,2002:merge"
_MOST_VALUES = 1 << 20
_MOST_DEPTH = 60
_NUMBERS = ("LOCAL_RANK", "RANK", "WORLD_SIZE")
_RESOLVER = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.]*)\s*:")
_PART = re.compile(r"([^.\[\]]+)|\[([^\[\]]+)\]")
_FLOAT = re.compile(
    r"""^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
        |\.[0-9_]+(?:[eE][-+]?[0-9]+)?
        |[-+]?\.(?:inf|Inf|INF)
        |\.(?:nan|NaN|NAN))$""",
    re.X,
)


def load_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a YAML file of Modalities, with interpolations replaced.

    Args:
        path: path of the file.

    Raises:
        NotFound: no such file.
        ConfigError: the file isn't YAML or not a mapping, or an interpolation refers to nothing.
        UnsafeData: the configuration grows without limit when its references are replaced.
    """
    where = Path(local_path(path, "a configuration"))
    try:
        with open_regular(where) as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise NotFound("no such file", path=where, hint="Check the path") from None
    if len(data) > _MOST_BYTES:
        raise ConfigError("the configuration is too large", path=where, expected=f"at most {_MOST_BYTES} bytes")
    return resolve_config(parse_yaml(data, where), where)


def parse_yaml(data: bytes, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the mapping in a YAML text, with unresolved interpolations."""
    try:
        found = yaml.load(data, _loader())
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {' '.join(str(error).split())}", path=path) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not YAML: {error}", path=path) from None
    if not isinstance(found, dict):
        raise ConfigError("the configuration is not a mapping", path=path, found=type(found).__name__)
    return found


def resolve_config(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a copy of a configuration with all interpolations replaced.

    Args:
        config: result of `parse_yaml`.
        path: path of the file, for `modalities_env` and errors.
    """
    return _Resolver(config, path).value(config, ())


def _loader() -> type[yaml.SafeLoader]:
    class Loader(yaml.SafeLoader):
        """OmegaConf's YAML: no dates, more floats, no key twice."""

        put_in = 0

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys: set[Any] = set()
            for key in (key.value for key, _ in node.value if key.tag != _MERGE and isinstance(key.value, str)):
                if key in keys:
                    raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is repeated", node.start_mark)
                keys.add(key)
            return super().construct_mapping(node, deep=deep)

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            """Merge the values of `<<`, counting them before they are copied: ten lines can expand to 10^9 values."""
            given = [one for key, one in node.value if key.tag == _MERGE]
            parts = [part for one in given for part in (one.value if isinstance(one, yaml.SequenceNode) else [one])]
            for part in {id(one): one for one in parts if isinstance(one, yaml.MappingNode)}.values():
                self.flatten_mapping(part)
            self.put_in += sum(len(one.value) for one in parts)
            if self.put_in > _MOST_VALUES:
                raise yaml.constructor.ConstructorError(None, None, "<< merges too much", node.start_mark)
            super().flatten_mapping(node)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":float"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
    return Loader


# --- interpolation -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Resolver:
    """Replaces interpolations; the values that they name are resolved on demand."""

    root: Mapping[str, Any]
    path: Path
    _open: list[tuple[Key, ...]] = field(default_factory=list[tuple[Key, ...]])
    _values: int = 0

    def value(self, raw: Any, place: tuple[Key, ...]) -> Any:
        """Return the resolved value of `raw`, which is at `place`."""
        self._values += 1
        if self._values > _MOST_VALUES or len(place) + len(self._open) > _MOST_DEPTH:
            raise UnsafeData("the configuration grows without limit", path=self.path, found=_dotted(place))
        if isinstance(raw, dict):
            return {key: self.value(one, (*place, key)) for key, one in raw.items()}
        if isinstance(raw, list):
            return [self.value(one, (*place, number)) for number, one in enumerate(raw)]
        return self.text(raw, place) if isinstance(raw, str) and "${" in raw else raw

    def text(self, raw: str, place: tuple[Key, ...]) -> Any:
        """Resolve a text with interpolations; a text that is a single one becomes the referenced value."""
        parts: list[Any] = []
        start = 0
        while (found := raw.find("${", start)) >= 0:
            if found > start and raw[found - 1] == "\\":
                parts += [raw[start : found - 1], "${"]
                start = found + 2
                continue
            stop = self._closing(raw, found)
            parts += [raw[start:found]] if found > start else []
            value = self.interpolation(raw[found + 2 : stop], place)
            if found == 0 and stop + 1 == len(raw):
                return value
            parts.append(value)
            start = stop + 1
        return "".join(map(str, [*parts, raw[start:]]))

    def interpolation(self, inner: str, place: tuple[Key, ...]) -> Any:
        """Resolve the text between `${` and `}`."""
        resolver = _RESOLVER.match(inner)
        if resolver:
            arguments = [self._argument(one, place) for one in _split(inner[resolver.end() :])]
            return self._call(resolver[1], arguments, inner)
        name = str(self.text(inner, place)).strip()
        dots = len(name) - len(name.lstrip("."))
        if dots > len(place):
            raise self._error("an interpolation points above the root", inner)
        keys: list[Key] = list(place[: len(place) - dots]) if dots else []
        for plain, bracketed in _PART.findall(name[dots:]):
            keys.append(plain or bracketed.strip("'\" "))
        return self._node(keys, inner)

    def _node(self, keys: list[Key], inner: str) -> Any:
        node: Any = self.root
        place: list[Key] = []
        for key in keys:
            # A value on the path may be an interpolation itself, such as a section copied from elsewhere.
            if isinstance(node, str):
                node = self._once(tuple(place), node)
            if isinstance(node, list) and (at := _index_in(str(key), len(node))) is not None:
                key = at
            elif not isinstance(node, dict) or key not in node:
                raise self._error(f"unresolved interpolation: no {_dotted((*place, key))!r}", inner)
            inside: Any = node
            node = inside[key]
            place.append(key)
        return self._once(tuple(place), node)

    def _once(self, place: tuple[Key, ...], raw: Any) -> Any:
        if place in self._open:
            raise self._error("circular interpolation", " → ".join(map(_dotted, [*self._open, place])))
        self._open.append(place)
        value = self.value(raw, place)
        self._open.pop()
        return value

    def _argument(self, raw: str, place: tuple[Key, ...]) -> Any:
        text = raw.strip()
        if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
            return self.text(text[1:-1], place)
        value = self.text(text, place)
        return None if value == "null" else value

    def _call(self, name: str, arguments: list[Any], inner: str) -> Any:
        if name not in _RESOLVERS:
            raise self._error(f"unknown resolver {name!r}", inner, expected=", ".join(_RESOLVERS))
        function, most = _RESOLVERS[name]
        if not 1 <= len(arguments) <= most:
            raise self._error(f"{name} takes {'one name' if most == 1 else 'a name and a default'}", inner)
        try:
            return function(self.path, *arguments)
        except PenstockError:
            raise
        except (KeyError, ValueError) as error:
            raise self._error(f"{name} has no {error.args[0]!r}", inner) from None

    def _closing(self, raw: str, start: int) -> int:
        depth = 0
        for place in range(start, len(raw)):
            if raw.startswith("${", place):
                depth += 1
            elif raw[place] == "}":
                depth -= 1
                if depth == 0:
                    return place
        raise self._error("an unterminated interpolation", raw[start:])

    def _error(self, what: str, found: str, expected: str | None = None) -> ConfigError:
        return ConfigError(what, path=self.path, found=found, expected=expected)


def _split(text: str) -> list[str]:
    """Split arguments at commas outside quotes and braces."""
    parts, start, depth, quote = list[str](), 0, 0, ""
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "{}":
            depth += 1 if character == "{" else -1
        elif character == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]]


def _index_in(key: str, length: int) -> int | None:
    """Return the index of a key in a list of `length`, counted from the end if negative; None if it isn't one."""
    if not key.startswith("-"):
        return count_in(key, length)
    from_end = count_in(key[1:], length + 1)
    return None if from_end is None else -from_end


def _dotted(place: tuple[Key, ...]) -> str:
    return ".".join(map(str, place)) or "the file"


def _cuda_env(path: Path, name: str) -> int | str | None:
    return int(os.environ[name]) if name in _NUMBERS else os.environ.get(name)


def _modalities_env(path: Path, name: str) -> Path:
    return {"config_file_path": path, "config_folder_path": path.parent}[name]


def _node_env(path: Path, name: str) -> int | None:
    return os.cpu_count() if name == "num_cpus" else None


def _oc_env(path: Path, name: str, *default: Any) -> Any:
    return os.environ.get(name, default[0]) if default else os.environ[name]


_RESOLVERS: dict[str, tuple[Callable[..., Any], int]] = {
    "cuda_env": (_cuda_env, 1),
    "modalities_env": (_modalities_env, 1),
    "node_env": (_node_env, 1),
    "oc.env": (_oc_env, 2),
}
"""Name → function, and its maximum number of arguments."""
