"""Samples, their parts and their tokens as HTML."""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from urllib.parse import quote

from penstock._printable import printable
from penstock.view.draw.blocks import Fault
from penstock.view.draw.html import block_html
from penstock.view.draw.markup import Child, Markup, joined, several, tag
from penstock.view.draw.words import count, counted, human_bytes, seconds
from penstock.view.facts.batches import Origin
from penstock.view.facts.panel import JsonNode, Panel, Panels
from penstock.view.facts.token_run import Token, TokenRun

Thumbnails = Mapping[str, bytes | str]
"""Name of a part → a small JPEG of it, or the reason why there isn't one."""

_MOST_PIXELS = _MOST_DRAWN_BYTES = 1 << 26
_IDS, _IDS_IN_FULL = 96, 2048
_BRIEF = 70
_MASKS = ("loss_mask", "attention_mask", "mask")
_CODE_NAMES = (
    *("code", "source", "patch", "diff", "sql", "sh"),
    *("py", "c", "cc", "cpp", "h", "js", "ts", "rs", "go", "java"),
)  # fmt: skip
_CODE_STARTS = ("import ", "from ", "def ", "class ", "return ", "const ", "let ", "func ", "fn ", "//", "/*", "<")
_OPEN = 2
_CELL, _VALUE, _MOST_VALUES, _LEAST_ROWS, _BARS = 200, 16, 3, 8, 16


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses of a sample's pages.

    Attributes:
        base: address of its dataset or run.
        at: its index, or its position in a run.
        query: query that every address needs.
        has_parts: whether stored parts have addresses; decoded ones only have pictures.
    """

    base: str
    at: int
    query: str = ""
    has_parts: bool = True

    @property
    def sample(self) -> str | None:
        return f"{self.base}sample/{self.at}{self.query}" if self.has_parts else None

    def part(self, name: str, *, save: bool = False) -> str | None:
        return self._of("part", name, "save=1" if save else "") if self.has_parts else None

    def small(self, name: str, *, large: bool = False) -> str:
        return self._of("small", name, "large=1" if large else "")

    def _of(self, kind: str, name: str, more: str) -> str:
        query = f"{self.query}{'&' if self.query else '?'}{more}" if more else self.query
        return f"{self.base}{kind}/{self.at}/{quote(name, safe='')}{query}"


def panels(
    shown: Panels, links: Links | None = None, *, full: bool = False, tokens: TokenRun | None = None,
    thumbnails: Thumbnails | None = None,
) -> Markup:  # fmt: skip
    """Return the parts of a sample.

    Args:
        shown: the sample.
        links: addresses of its pages; None without pages.
        full: whether it has a page of its own.
        tokens: its tokens, shown instead of the numbers.
        thumbnails: pictures inside the page.
    """
    made: list[Child] = []
    if shown.error is not None:
        is_alone = full and not shown.is_excluded
        made.append(block_html(Fault(shown.error, title="This sample can't be read.")) if is_alone
                    else broken(shown.error, is_excluded=shown.is_excluded))  # fmt: skip
    tokens = tokens or shown.tokens
    if tokens is not None:
        made.append(tag("section", strip(tokens), class_="panel long"))
    left = [one for one in shown.panels if tokens is None or not _is_of_tokens(one)]
    made += [panel(one, links, full=full, thumbnail=(thumbnails or {}).get(one.name)) for one in left]
    if shown.more > 0:
        least = " or more" if shown.of_is_least else ""
        where = None if full or links is None or links.sample is None else links.sample
        open_it = None if where is None else (": ", tag("a", "open the sample", href=where))
        made.append(tag("p", f"{count(shown.more)}{least} more parts", open_it, class_="cut"))
    if not made:
        made.append(tag("p", "no fields", class_="cut"))
    return several(made)


def card(
    shown: Panels, title: str, origin: Origin | None = None, *, tokens: TokenRun | None = None,
    thumbnails: Thumbnails | None = None,
) -> Markup:  # fmt: skip
    """Return a sample with its name and origin, without links."""
    key = tag("span", tag("bdi", printable(shown.key)), class_="path") if shown.key else None
    body = (None if origin is None else origin_of(origin), panels(shown, tokens=tokens, thumbnails=thumbnails))
    return tag("article", tag("header", tag("b", title), key), tag("div", body, class_="body"), class_="sample")


def broken(text: str, *, is_excluded: bool = False) -> Markup:
    sign = tag("span", "⊘" if is_excluded else "▲", class_="sign", aria_hidden="true")
    return tag("p", sign, " ", text, class_="broken out" if is_excluded else "broken")


def panel(
    one: Panel, links: Links | None = None, *, full: bool = False, thumbnail: bytes | str | None = None
) -> Markup:
    """Return one part of a sample; `thumbnail` is a small JPEG of it, or the reason why there isn't one."""
    is_value = one.tree is not None and not one.tree.children
    is_brief = not full and (is_value or (one.kind == "text" and len(one.text) <= _BRIEF and "\n" not in one.text))
    is_chat = one.kind == "json" and one.tree is not None and _conversation(one.tree) is not None
    is_long = is_chat or (one.kind in ("text", "tokens", "bytes", "array") and not is_brief)
    classes = ["panel", *(["error"] if one.kind == "error" else []), *(["brief"] if is_brief else [])]
    fields = tag("span", f"field {', '.join(one.fields)}", class_="measure") if one.fields else None
    save = None
    if full and links is not None and one.kind not in ("error", "tokens", "array") and one.size_bytes is not None:
        save = tag("a", "save", class_="save", href=links.part(one.name, save=True))
    head = tag("h4", tag("span", tag("bdi", printable(one.name)), class_="name"), tag("span", one.kind, class_="kind"),
               fields, tag("span", measures(one), class_="measure"), save)  # fmt: skip
    return tag("section", head, content(one, links, full=full, thumbnail=thumbnail),
               class_=" ".join([*classes, *(["long"] if is_long else [])]))  # fmt: skip


def measures(one: Panel) -> str:
    """Describe a part in a line: `640 × 480, JPEG, RGB, 12.1 kB`."""
    words: list[str] = []
    if one.width is not None and one.height is not None:
        words.append(f"{one.width:,} × {one.height:,}")
    if one.kind == "image" and one.note:
        words.append(one.note)
    if one.seconds is not None:
        words.append(seconds(one.seconds))
    if one.frames is not None:
        words.append(counted(one.frames, "frame"))
    if one.sample_rate:
        words.append(f"{one.sample_rate:,} Hz")
    if one.channels:
        words.append(counted(one.channels, "channel"))
    if one.dtype is not None:
        words.append(f"{one.dtype}{list(one.shape or ())}")
    if one.size_bytes is not None:
        words.append(human_bytes(one.size_bytes))
    return ", ".join(words)


def content(one: Panel, links: Links | None, *, full: bool = False, thumbnail: bytes | str | None = None) -> Markup:
    """Return the content of a part, without its name."""
    where = None if links is None else links.part(one.name)
    made: list[Child] = []
    match one.kind:
        case "image":
            made.append(_image(one, links, full, thumbnail))
        case "audio" | "video" if where is not None:
            made.append(_player(one, where, full))
        case "json" if one.tree is not None:
            made.append(_conversation(one.tree) or _json(one.tree))
        case "error":
            made += [broken(one.text), tag("pre", one.note, class_="hex") if one.note else None]
        case "tokens":
            ids = one.ids[: _IDS_IN_FULL if full else _IDS]
            more = " …" if (one.of or 0) > len(ids) else ""
            made += [tag("pre", one.text, class_="text") if one.text else None]
            made += [tag("pre", " ".join(map(str, ids)) + more, class_="numbers")]
        case "array" if one.dtype == "bool" or one.name in _MASKS:
            made.append(_mask(one))
        case "bytes" | "array":
            made.append(tag("pre", one.text + (" …" if one.is_cut else ""), class_="numbers"))
        case "text":
            made.append(tag("pre", one.text, class_="text code" if _is_code(one) else "text"))
        case _:
            pass
    if one.is_cut and (one.kind == "text" or (full and one.kind == "bytes")):
        made.append(tag("p", f"{count(one.shown)} of {count(one.of)} {one.unit} shown", class_="cut"))
    if one.note and one.kind not in ("image", "error"):
        made.append(tag("p", one.note, class_="cut"))
    return joined(made)


def _is_code(one: Panel) -> bool:
    """Return whether a text is code: by its name, else by its lines."""
    if one.name.rpartition(".")[2].lower() in _CODE_NAMES:
        return True
    lines = [line for line in one.text.splitlines() if line.strip()]
    marks = sum(
        line[0] in " \t#@}" or line.rstrip()[-1] in "{};:(),=" or line.startswith(_CODE_STARTS) for line in lines
    )
    return len(lines) > 1 and ("\n  " in one.text or "\t" in one.text or 2 * marks > len(lines))


def _conversation(node: JsonNode) -> Markup | None:
    """Return the messages of a chat in turns; None for other values."""
    if node.kind != "array" or not node.children:
        return None
    turns: list[Child] = []
    for message in node.children:
        parts = {part.name: part for part in message.children}
        role = parts.pop("role", None) or parts.pop("from", None)
        content = parts.pop("content", None) or parts.pop("value", None)
        if role is None or role.kind != "string" or content is None:
            return None
        kind = role.text if role.text in ("system", "user", "assistant", "tool") else "other"
        more = tag("span", f"… {count(content.more)} more characters", class_="cut") if content.more else None
        said = _message(content.text) if content.kind == "string" else _json(content, _OPEN)
        rest = [_json(part, _OPEN) for part in parts.values()]
        turns.append(tag("li", tag("strong", role.text), tag("div", said, more, rest), class_=f"turn {kind}"))
    if node.more:
        turns.append(tag("li", f"{count(node.more)} more messages", class_="cut"))
    return tag("ol", turns, class_="chat")


def _message(text: str) -> Child:
    """Return a message, with its fenced blocks as code."""
    pieces = text.split("```")
    return [
        tag("pre", piece.strip("\n"), class_="text code" if at % 2 else "text")
        for at, piece in enumerate(pieces)
        if piece.strip("\n")
    ] or tag("pre", text, class_="text")


def _mask(one: Panel) -> Markup:
    """Return a mask as a bar, filled at the values that are on."""
    on = [text not in ("False", "0") for text in one.text.split()]
    path, at = "", 0
    for is_on, run in groupby(on):
        length = len(list(run))
        path += f"M{at} 0h{length}v1h-{length}z" if is_on else ""
        at += length
    shown = tag("svg", tag("path", d=path), viewBox=f"0 0 {max(1, len(on))} 1", preserveAspectRatio="none",
                class_="mask", role="img", aria_label=f"{sum(on):,} of {len(on):,} are on")  # fmt: skip
    of = f" of the first {len(on):,}" if one.is_cut else f" of {len(on):,}"
    return several(shown, tag("p", f"{sum(on):,}{of} are on", class_="cut"))


def _image(one: Panel, links: Links | None, full: bool, thumbnail: bytes | str | None) -> Child:
    if isinstance(thumbnail, bytes):
        url = "data:image/jpeg;base64," + base64.b64encode(thumbnail).decode()
        return tag("span", tag("img", src=url, alt=printable(one.name)), class_="shot")
    if links is None:
        return None if thumbnail is None else tag("p", thumbnail, class_="blank")
    where = links.part(one.name)
    pixels = (one.width or 0) * (one.height or 0)
    if pixels and pixels <= _MOST_PIXELS and (one.size_bytes or 0) <= _MOST_DRAWN_BYTES:
        shown = tag("img", src=links.small(one.name, large=full), alt=printable(one.name), loading="lazy",
                    decoding="async", class_="large" if full else None)  # fmt: skip
        return tag("a", shown, class_="shot", href=where)
    why = f"{one.width:,} × {one.height:,} pixels: too large for a preview." if pixels else "This image can't be shown."
    save = None if where is None else (" ", tag("a", "Save the file", href=links.part(one.name, save=True)))
    return tag("p", why, save, class_="blank")


def _player(one: Panel, where: str, full: bool) -> Child:
    if one.kind == "audio":
        return tag("audio", "", controls=True, preload="none", src=where)
    if one.note == "no frames":
        save = tag("a", "Save the file", href=f"{where}{'&' if '?' in where else '?'}save=1")
        return tag("p", "A video without frames. ", save, class_="blank")
    return tag("video", "", controls=True, preload="metadata" if full else "none", src=where, width=one.width,
               height=one.height)  # fmt: skip


def _json(node: JsonNode, depth: int = 0) -> Markup:
    name = None if node.name is None else (tag("span", printable(node.name), class_="k"), ": ")
    if node.kind in ("object", "array") and node.children:
        number = f"{{{count(node.of)}}}" if node.kind == "object" else f"[{count(node.of)}]"
        more = tag("div", f"… {count(node.more)} more", class_="leaf n") if node.more else None
        return tag("details", tag("summary", name, tag("span", number, class_="n")),
                   [_json(child, depth + 1) for child in node.children], more,
                   class_="json", open=depth < _OPEN)  # fmt: skip
    empty = {"object": "{}", "array": "[]"}.get(node.kind)
    more = tag("span", f" … {count(node.more)} more characters", class_="n") if node.more and not empty else None
    kind = "n" if empty else "s" if node.kind == "string" else f"v {node.kind}"
    return tag("div", name, tag("span", empty or node.text, class_=kind), more, class_="leaf")


# --- rows of a table ---------------------------------------------------------------------------------------------


def cell_of(one: Panel) -> str:
    """Return a part as the text of a cell, with `…` if it is cut."""
    node = one.tree
    text = one.text if node is None else node.text if not node.children else f"{node.kind} of {node.of:,}"
    is_cut = len(text) > _CELL or one.is_cut or (node is not None and not node.children and node.more > 0)
    return text[:_CELL] + (" …" if is_cut else "")


def summary_of(rows: Sequence[Panels], name: str, find: str) -> Markup | None:
    """Return a small histogram of a column of numbers, or the most frequent values of other columns.

    Args:
        rows: the shown samples.
        name: name of the column.
        find: address of the search, to which frequent values lead.
    """
    parts = [part for row in rows for part in row.panels if part.name == name and part.kind in ("text", "json")]
    texts = [cell_of(part) for part in parts]
    if len(texts) < _LEAST_ROWS:
        return None
    if all(part.tree is not None and part.tree.kind == "number" for part in parts):
        values = [float(text) for text in texts if text[:1] in "-0123456789"]
        return _small_histogram([value for value in values if math.isfinite(value)])
    common = [(text, number) for text, number in Counter(texts).most_common(_MOST_VALUES) if number > 1]
    if 2 * len(set(texts)) > len(texts) or not common:
        return None
    links: list[Child] = []
    for text, number in common:
        where = f"{name} == {text!r}"
        is_exact = name.isidentifier() and not text.endswith("…") and all(part.kind == "text" for part in parts)
        href = f"{find}{'&' if '?' in find else '?'}where={quote(where, safe='')}" if is_exact else None
        label = (tag("bdi", printable(text[:_VALUE] + ("…" if len(text) > _VALUE else ""))), f" {number:,}")
        links.append(tag("a", label, href=href, title=f"Find all samples with {where}") if href else tag("span", label))
    return tag("span", links, class_="values")


def _small_histogram(values: Sequence[float]) -> Markup | None:
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low == high or not math.isfinite(high - low):
        return None
    counts = [0] * _BARS
    for value in values:
        counts[min(_BARS - 1, int(_BARS * ((value - low) / (high - low))))] += 1
    top = max(counts)
    path = "".join(f"M{at} {top}v-{number}h.9v{number}z" for at, number in enumerate(counts) if number)
    label = f"{low:g} to {high:g} in these {len(values):,} rows"
    shown = tag("svg", tag("path", d=path), viewBox=f"0 0 {_BARS} {top}", preserveAspectRatio="none",
                class_="spark", role="img", aria_label=label)  # fmt: skip
    return tag("span", shown, title=label)


# --- tokens ------------------------------------------------------------------------------------------------------


def about_tokens(run: TokenRun) -> str:
    """Return `128 tokens, 2 documents, 100 in the loss`."""
    words = [counted(run.of, "token")]
    if len(run.tokens) < run.of:
        words.append(f"{count(run.start)} to {count(run.start + len(run.tokens))} shown")
    words += [counted(run.documents, "document")] if run.documents is not None else []
    words += [f"{count(run.padding)} padding"] if run.padding else []
    words += [f"{count(run.counted)} in the loss"] if run.counted is not None else []
    return ", ".join(words)


def strip(run: TokenRun) -> Markup:
    """Return tokens in a row with a summary."""
    head = tag("h4", tag("span", run.field, class_="name"), tag("span", about_tokens(run), class_="measure"))
    return several(head, tokens_of(run, plain=True))


def tokens_of(run: TokenRun, *, ids: bool = False, plain: bool = False, further: str | None = None) -> Markup:
    """Return tokens in a row: documents in different tints, tokens without loss dotted.

    Args:
        run: the tokens.
        ids: whether the id of each token is shown below its text.
        plain: whether they have no box.
        further: address of the other tokens.
    """
    made: list[Child] = []
    for one in run.tokens:
        if one.begins:
            segment = f": segment {one.segment}" if one.segment else ""
            made.append(tag("span", f"¶{one.segment or ''}", class_="border", title=f"start of a document{segment}"))
        made.append(_token(one, run))
    left = run.of - len(run.tokens)
    more = None
    if plain and left > 0:
        more = tag("a", f"{count(left)} more", class_="further", href=further) if further else f" … {count(left)} more"
    has_ids = ids or not run.has_texts
    classes = ["strip", *(["plain"] if plain else []), *(["with-ids"] if has_ids else [])]
    return tag("div", made or "No tokens.", more, class_=" ".join(classes))


def _token(one: Token, run: TokenRun) -> Markup:
    kinds = ["token"]
    if one.segment is None:
        kinds.append("tone2" if one.place % 2 else "tone1")
    else:
        kinds.append(f"seg{(one.segment - 1) % 6 + 1}" if one.segment else "pad")
    kinds += ["eos"] if one.is_eos else []
    kinds += ["masked"] if one.counts is False else []
    if one.whole is not None:
        kinds.append("whole" if one.whole else "goes")
    elif not one.is_text:
        kinds.append("raw")
    kinds += [] if one.is_known else ["unknown"]
    about = [f"place {one.place:,}", f"id {one.id}"]
    about += [f"position {one.position}"] if one.position is not None else []
    about += [f"segment {one.segment}"] if one.segment is not None else []
    about += [f"target {one.target}"] if one.target is not None else []
    about += ["counts" if one.counts else "does not count"] if one.counts is not None else []
    about += [f"bytes {one.text}"] if not one.is_text else []
    about += ["no such id in this tokenizer"] if not one.is_known else []
    text = one.reads.replace("\n", "↵\n") if run.has_texts else ""
    if not one.is_known and run.has_texts:
        text = f"⟨{one.id}⟩"
    elif one.is_eos and not text:
        text = "EOS"
    return tag("span", text, class_=" ".join(kinds), title=" · ".join(about), data_i=one.id)


def token_key(runs: Iterable[TokenRun]) -> Markup | None:
    """Return a legend of the marks used by any of these tokens."""
    shown = list(runs)
    ones = [one for run in shown for one in run.tokens]
    if not ones:
        return None

    def mark(text: str, kind: str) -> Markup:
        return tag("span", text, class_=f"token {kind}")

    if any(run.documents is not None for run in shown):
        rows: list[tuple[Child, str]] = [((mark("a", "seg1"), mark("b", "seg2")), "one document each")]
    else:
        rows = [((mark("a", "tone1"), mark("b", "tone2")), "one token each")]
    border = tag("span", "¶", class_="border", aria_hidden="true")
    rows.append((border, "start of a document (not shown if a window continues a document)"))
    if any(one.is_eos for one in ones):
        rows.append((mark("EOS", "eos"), "end of a document"))
    if any(run.counted is not None for run in shown):
        shifted = "not a training target: the mask is shown on the token to predict"
        rows.append((mark("x", "masked"), shifted if shown[0].is_shifted else "excluded from the loss"))
    if any(run.padding for run in shown):
        rows.append((mark("0", "pad"), "padding"))
    if any(one.whole for one in ones):
        rows.append(((mark("é", "whole tone1"), mark("", "goes tone2")), "a character split over several tokens"))
    if any(not one.is_text and one.whole is None for one in ones) and any(run.has_texts for run in shown):
        rows.append((mark(r"\xe2", "raw"), "bytes that aren't valid UTF-8 on their own"))
    if any(not run.has_texts for run in shown):
        rows.append((mark("17", "tone1"), "an id: no tokenizer was given"))
    return tag("ul", [tag("li", sign, " ", text) for sign, text in rows], class_="legend", aria_label="Legend")


def origin_of(origin: Origin) -> Markup:
    """Describe the origin of a sample of a run."""
    words = [tag("bdi", printable(origin.source))]
    words += [f"index {count(origin.index)}"] if origin.index is not None else []
    words += [f"epoch {count(origin.epoch)}"] if origin.epoch is not None else []
    words += [f"rank {origin.rank}"]
    words += [tag("bdi", printable(origin.key))] if origin.key else []
    words += [f"⊘ replaces {count(origin.instead_of)}, which is excluded"] if origin.instead_of is not None else []
    if origin.path:
        byte = "" if origin.offset_bytes is None else f" byte {count(origin.offset_bytes)}"
        words.append(tag("span", tag("bdi", printable(origin.path)), byte, class_="n"))
    made_of = origin.made_of or (None,) * len(origin.documents)
    documents = [
        f"document {count(number)}{f' of {whence}' if whence else ''} [{start:,}, {stop:,})"
        for (number, start, stop), whence in zip(origin.documents[:6], made_of, strict=False)
    ] or [str(one) for one in origin.made_of[:8]]
    documents += [f"and {len(origin.documents) - 6:,} more"] if len(origin.documents) > 6 else []
    inputs = "" if origin.documents or not documents else "made of "
    line = [(" · " if at else "", one) for at, one in enumerate(words)]
    more = tag("p", inputs, printable(", ".join(documents)), class_="origin n") if documents else None
    return several(tag("p", line, class_="origin"), more)


def _is_of_tokens(one: Panel) -> bool:
    return one.kind == "tokens" or one.name in ("loss_mask", "segment_ids", "positions", "cu_seqlens", "max_seqlen")
