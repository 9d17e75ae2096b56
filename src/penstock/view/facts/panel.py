"""Samples as panels: each part by its type, cut to a bounded size, with errors in the affected part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from penstock._printable import recordable
from penstock._secrets import redact
from penstock.codec.media_bytes import MediaBytes, media_bytes
from penstock.codec.parts import DecodeOptions, decode_part, suffix_of
from penstock.errors import MissingExtra, PenstockError
from penstock.types import AVMetadata, ImageMetadata
from penstock.view.facts.bounds import IN_LIST, MOST_ERROR_CHARACTERS, MOST_NAME_CHARACTERS, Bounds
from penstock.view.facts.media import HEAD_BYTES, read_header, sniff_media
from penstock.view.facts.token_run import TokenRun

PanelKind = Literal["text", "tokens", "image", "audio", "video", "json", "array", "bytes", "error"]
Decode = Callable[[Sequence[int]], str]
"""Function from ids to text."""

KEY = "__key__"
TOKEN_FIELDS = ("tokens", "inputs", "targets", "input_ids", "labels")
_PACKED = frozenset(("npy", "npz", "ten", "tb", "mp", "msg", "cbor", "pkl", "pickle", "pyd"))
_JSON = ("json", "jsn")
_MOST_UNPACKED = 1 << 24
_PLAIN = DecodeOptions(most_bytes=_MOST_UNPACKED)
_CONTROLS = tuple(map(chr, sorted(frozenset(range(32)) - {9, 10, 12, 13, 27})))
_TEXT_SHARE = 24
"""At most one of this many characters of a text is a control character."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One part of a sample.

    Attributes:
        name: name of the part, field or column.
        kind: type of the content.
        text: content as text: the beginning of a text, the text of tokens if a tokenizer is known, the first numbers of
            an array, the first bytes in hex, or an error message.
        size_bytes: stored size, or size in memory; None if unknown.
        shown: number of characters, items or bytes in `text`, `ids` or `tree`; `of`: number of all. None if nothing is
            counted.
        unit: unit of `shown` and `of`.
        media_type: type of a picture, sound or video, from its content.
        width, height: size of a picture or video, in pixels.
        seconds: duration of sound or a video; `frames`, `sample_rate`, `channels` likewise.
        dtype, shape: dtype and shape of an array or of tokens.
        note: further remark, such as a missing extra.
        fields: names under which Python returns a stored part, if they differ from its own.
    """

    name: str
    kind: PanelKind
    text: str = ""
    size_bytes: int | None = None
    shown: int | None = None
    of: int | None = None
    unit: str = ""
    media_type: str | None = None
    width: int | None = None
    height: int | None = None
    seconds: float | None = None
    frames: int | None = None
    sample_rate: int | None = None
    channels: int | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    ids: tuple[int, ...] = ()
    tree: JsonNode | None = None
    note: str | None = None
    fields: tuple[str, ...] = ()

    @property
    def is_cut(self) -> bool:
        return self.shown is not None and self.of is not None and self.shown < self.of


@dataclass(frozen=True, slots=True)
class Panels:
    """A sample.

    Attributes:
        index: index in its source; None without one.
        key: key of the sample, if it has one.
        panels: shown parts, in the order of the sample's fields.
        of: number of the sample's fields, without hidden ones.
        hidden: number of hidden internal fields, which begin with `__`.
        error: error of the whole sample, if it can't be read.
        of_is_least: whether there may be more than `of` fields, because counting all takes too long.
        tokens: its tokens with their mask, if it has both.
    """

    index: int | None
    key: str | None
    panels: tuple[Panel, ...]
    of: int
    hidden: int = 0
    error: str | None = None
    is_excluded: bool = False
    of_is_least: bool = False
    tokens: TokenRun | None = None

    @property
    def more(self) -> int:
        return self.of - len(self.panels)


def panels(
    sample: Mapping[str, Any],
    *,
    index: int | None = None,
    show_all: bool = False,
    decode: Decode | None = None,
    bounds: Bounds = IN_LIST,
) -> Panels:
    """Return the panels of a sample; never raises because of the data.

    Memory: see `Bounds`; compressed parts are decompressed up to 16 MiB.
    """
    hidden = [name for name in sample if str(name).startswith("__") and name != KEY]
    inner = set(hidden)
    names: Iterable[Any] = (name for name in sample if name not in inner and name != KEY)
    if show_all:
        names = (*names, *hidden)
    count = len(sample) - (KEY in sample) - (0 if show_all else len(hidden))
    made = tuple(panel(name, sample[name], decode=decode, bounds=bounds) for name in islice(names, bounds.panels))
    key = sample.get(KEY)
    text = None if key is None else recordable(str(key)[:MOST_NAME_CHARACTERS])
    return Panels(index, text, made, count, 0 if show_all else len(hidden))


def panel(name: Any, value: Any, *, decode: Decode | None = None, bounds: Bounds = IN_LIST) -> Panel:
    """Return the panel of one field, or an error panel."""
    shown_name = recordable(str(name)[:MOST_NAME_CHARACTERS])
    try:
        return _panel(shown_name, value, decode, bounds)
    except Exception as error:  # the data is arbitrary: the page shows the error and continues
        return error_panel(shown_name, error, _size_of(value))


def error_panel(name: str, error: BaseException, size_bytes: int | None = None) -> Panel:
    return Panel(name, "error", describe_error(error), size_bytes)


def describe_error(error: BaseException) -> str:
    """Describe an error in a line, without secrets."""
    text = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
    return redact(recordable(text[:MOST_ERROR_CHARACTERS]))


def stored_panel(name: str, media: MediaBytes, *, bounds: Bounds = IN_LIST) -> Panel:
    """Return the panel of a part that isn't read whole: its beginning, and its header."""
    head = media.read(0, max(HEAD_BYTES, min(bounds.characters, media.size_bytes)))
    kind = sniff_media(head[:HEAD_BYTES])
    try:
        if kind is not None:
            return _media(name, kind, media)
    except Exception as error:
        return dataclasses.replace(error_panel(name, error, media.size_bytes), media_type=kind)
    return _plain_bytes(name, head, media.size_bytes, bounds)


def _panel(name: str, value: Any, decode: Decode | None, bounds: Bounds) -> Panel:
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes(name, bytes(value), bounds)
    if isinstance(value, str):
        return _text(name, value, len(value), "characters", None, bounds)
    if hasattr(value, "dtype") and hasattr(value, "shape") and value.shape:
        return _array(name, value, decode, bounds)
    if hasattr(value, "mode") and hasattr(value, "tobytes") and hasattr(value, "width"):
        return Panel(name, "image", width=value.width, height=value.height, note=f"decoded, mode {value.mode}")
    if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes) and value.keys() <= {"bytes", "path"}:
        return _bytes(name, value["bytes"], bounds)  # Hugging Face's encoding of pictures and sound
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    return _json(name, value, None, bounds)


def _bytes(name: str, data: bytes, bounds: Bounds) -> Panel:
    kind = sniff_media(data[:HEAD_BYTES])
    if kind is not None:
        try:
            return _media(name, kind, media_bytes(data))
        except Exception as error:
            return dataclasses.replace(error_panel(name, error, len(data)), media_type=kind)
    suffix = suffix_of(name.lower().removesuffix(".gz"))
    if suffix in (*_JSON, *_PACKED) and len(data) <= _MOST_UNPACKED:
        return _decoded(name, data, bounds)
    return _plain_bytes(name, data, len(data), bounds)


def _decoded(name: str, data: bytes, bounds: Bounds) -> Panel:
    """Decode a part of JSON or of arrays."""
    try:
        value = decode_part(name.lower(), data, _PLAIN)
    except Exception as error:
        return dataclasses.replace(error_panel(name, error, len(data)), note=_plain_bytes(name, data, 0, bounds).text)
    made = _panel(name, value, None, bounds)
    return dataclasses.replace(made, size_bytes=len(data))


def _media(name: str, media_type: str, media: MediaBytes) -> Panel:
    kind: Any = media_type.partition("/")[0]
    made = Panel(name, kind, size_bytes=media.size_bytes, media_type=media_type)
    try:
        found = read_header(media_type, media)
    except MissingExtra as error:
        return dataclasses.replace(made, note=describe_error(error))
    if isinstance(found, ImageMetadata):
        return dataclasses.replace(made, width=found.width, height=found.height, note=f"{found.format}, {found.mode}")
    return _av(made, found)


def _av(made: Panel, found: AVMetadata) -> Panel:
    has_video = found.video_duration is not None or bool(found.video_num_frames) or found.video_width is not None
    seconds = found.video_duration if has_video else found.audio_duration
    note = None
    if made.kind == "video" and not has_video:
        note = "no frames"
    elif has_video and not found.video_num_frames:
        note = "the number of frames is unknown" if found.video_num_frames is None else "no frames"
    return dataclasses.replace(
        made,
        kind="video" if has_video else "audio" if found.audio_channels else made.kind,
        width=found.video_width,
        height=found.video_height,
        seconds=seconds,
        frames=found.video_num_frames,
        sample_rate=found.audio_sample_rate,
        channels=found.audio_channels,
        note=note,
    )


def _plain_bytes(name: str, data: bytes, size_bytes: int, bounds: Bounds) -> Panel:
    """Return text if the beginning is UTF-8 with few control characters; else the first bytes in hex."""
    head = data[: 4 * bounds.characters]
    is_whole = len(head) == size_bytes
    try:
        text = head.decode() if is_whole else _decoded_beginning(head)
    except UnicodeDecodeError:
        text = None
    if text is not None and _TEXT_SHARE * sum(map(text.count, _CONTROLS)) <= len(text):
        unit, of = ("characters", len(text)) if is_whole else ("bytes", size_bytes)
        return _text(name, text, of, unit, size_bytes, bounds)
    few = data[: bounds.shown_bytes]
    return Panel(name, "bytes", few.hex(" "), size_bytes, len(few), size_bytes, "bytes")


def _decoded_beginning(head: bytes) -> str:
    """Decode bytes that may end inside a character."""
    for cut in range(4):
        try:
            return head[: len(head) - cut].decode()
        except UnicodeDecodeError as error:
            if error.end < len(head) - cut or cut == 3:
                raise
    raise ValueError("unreachable")


def _text(name: str, text: str, of: int, unit: str, size_bytes: int | None, bounds: Bounds) -> Panel:
    few = text[: bounds.characters]
    shown = len(few) if unit == "characters" else len(few.encode(errors="surrogatepass"))
    return Panel(name, "text", recordable(few), size_bytes, shown, of, unit)


def _array(name: str, value: Any, decode: Decode | None, bounds: Bounds) -> Panel:
    shape = tuple(int(one) for one in value.shape)
    few = value.reshape(-1)[: bounds.items]
    numbers: list[Any] = few.tolist()
    size = int(value.size) if isinstance(getattr(value, "size", None), int) else int(value.numel())
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    made = Panel(name, "array", _numbers(numbers), int(value.nbytes), len(numbers), size, "items")
    made = dataclasses.replace(made, dtype=str(value.dtype).removeprefix("torch."), shape=shape)
    if name not in TOKEN_FIELDS or len(shape) != 1 or kind not in "iu":
        return made
    text, note = "", None
    try:
        text = "" if decode is None else recordable(decode(numbers)[: bounds.characters])
    except Exception as error:  # the tokenizer doesn't have these ids
        note = f"no text: {describe_error(error)}"
    return dataclasses.replace(made, kind="tokens", text=text, ids=tuple(numbers), unit="tokens", note=note)


def _numbers(numbers: list[Any]) -> str:
    return " ".join(f"{one:.6g}" if isinstance(one, float) else str(one)[:MOST_NAME_CHARACTERS] for one in numbers)


def _json(name: str, value: Any, size_bytes: int | None, bounds: Bounds) -> Panel:
    tree = json_tree(value, bounds)
    text = tree.text if not tree.children else ""
    return Panel(
        name, "json", text, size_bytes, len(tree.children), tree.of if tree.children else 0, "values", tree=tree
    )


def _size_of(value: Any) -> int | None:
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value)
    found = getattr(value, "nbytes", None)
    return found if isinstance(found, int) else None


Kind = Literal["object", "array", "string", "number", "bool", "null", "other"]
_MOST_DIGITS = 60
_OF_STRING = 500
_SHORT: tuple[Kind, ...] = ("number", "bool", "null")
_MOST_ROW = 100


@dataclass(frozen=True, slots=True)
class JsonNode:
    """A JSON value.

    Attributes:
        name: key in an object; None in an array.
        kind: type of the value; `"other"` isn't JSON: `text` has its type and its beginning.
        text: content of a string, without quotes; literal of a number, `true`, `null` and others.
        children: shown children of an object or array.
        of: number of all children, or of characters in a string.
    """

    name: str | None
    kind: Kind
    text: str = ""
    children: tuple[JsonNode, ...] = ()
    of: int = 0

    @property
    def more(self) -> int:
        """Number of children, or characters of a string, that aren't shown."""
        if self.kind in ("object", "array"):
            return self.of - len(self.children)
        return max(0, self.of - len(self.text)) if self.kind == "string" else 0


def json_tree(value: Any, bounds: Bounds) -> JsonNode:
    """Return the tree of a value, of at most `bounds.nodes` nodes; the first ones of each level."""
    return _node(None, value, [bounds.nodes], bounds.deep)


def json_lines(node: JsonNode, indent: str = "") -> Iterator[str]:
    """Yield the tree as indented lines, with `…` for omitted parts; strings in quotes."""
    name = "" if node.name is None else f"{_quoted(node.name)}: "
    if node.kind not in ("object", "array"):
        more = f" … {node.more:,} more characters" if node.more else ""
        yield f"{indent}{name}{_quoted(node.text) if node.kind == 'string' else node.text}{more}"
        return
    begin, end = "{}" if node.kind == "object" else "[]"
    if not node.children:
        yield f"{indent}{name}{begin}{f' … {node.of:,} more ' if node.of else ''}{end}"
        return
    if node.kind == "array" and all(child.kind in _SHORT for child in node.children):
        row = ", ".join(child.text for child in node.children)
        if len(row) <= _MOST_ROW:
            yield f"{indent}{name}[{row}{f', … {node.more:,} more' if node.more else ''}]"
            return
    yield f"{indent}{name}{begin}"
    for child in node.children:
        yield from json_lines(child, indent + "  ")
    if node.more:
        yield f"{indent}  … {node.more:,} more"
    yield indent + end


def _node(name: str | None, value: Any, left: list[int], deep: int) -> JsonNode:
    left[0] -= 1
    if isinstance(value, str):
        return JsonNode(name, "string", recordable(value[:_OF_STRING]), of=len(value))
    if value is None or isinstance(value, bool):
        return JsonNode(name, "null" if value is None else "bool", {None: "null", True: "true", False: "false"}[value])
    if isinstance(value, int | float):
        return JsonNode(name, "number", _number(value))
    if isinstance(value, Mapping):
        pairs = ((_key(key), one) for key, one in value.items())
        return JsonNode(name, "object", children=_children(pairs, left, deep), of=len(value))
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return JsonNode(name, "array", children=_children(((None, one) for one in value), left, deep), of=len(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return JsonNode(name, "other", f"{len(value):,} bytes")
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        if not value.shape:
            return _node(name, value.item(), left, deep)
        return JsonNode(name, "other", f"{value.dtype}{list(value.shape)}")
    return JsonNode(name, "other", f"{type(value).__name__} {recordable(str(value)[:_OF_STRING])}")


def _children(pairs: Iterator[tuple[str | None, Any]], left: list[int], deep: int) -> tuple[JsonNode, ...]:
    found: list[JsonNode] = []
    while deep > 0 and left[0] > 0 and (pair := next(pairs, None)) is not None:
        found.append(_node(*pair, left, deep - 1))
    return tuple(found)


def _key(key: Any) -> str:
    return recordable("".join(islice(str(key), MOST_NAME_CHARACTERS)))


def _number(value: float) -> str:
    if isinstance(value, int) and value.bit_length() > 4 * _MOST_DIGITS:  # slow to print
        return f"a number of {value.bit_length():,} bits"
    return str(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
