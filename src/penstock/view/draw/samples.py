"""Samples, their parts and their tokens as HTML."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping

from penstock.view.draw.markup import Child, Markup, tag
from penstock.view.draw.words import count, counted, human_bytes, seconds
from penstock.view.facts.batches import Origin
from penstock.view.facts.panel import Panel, Panels, json_lines
from penstock.view.facts.token_run import Token, TokenRun

Thumbnails = Mapping[str, bytes | str]
"""Name of a part → a small JPEG of it, or the reason why there isn't one."""


def sample(
    shown: Panels,
    *,
    title: str | None = None,
    origin: Origin | None = None,
    thumbnails: Thumbnails | None = None,
    tokens: TokenRun | None = None,
    width: int = 1,
) -> Markup:
    name = title or (f"#{count(shown.index)}" if shown.index is not None else "sample")
    head = [tag("b", name), tag("span", shown.key, class_="path") if shown.key else None]
    parts: list[Child] = []
    if shown.error is not None:
        label = "excluded" if shown.is_excluded else "can't be read"
        head.append(tag("span", label, class_="pill warn" if shown.is_excluded else "pill bad"))
        parts.append(tag("div", tag("pre", shown.error), class_="panel" if shown.is_excluded else "panel error"))
    parts += [_origin(origin)] if origin is not None else []
    parts += [tokens_of(tokens)] if tokens is not None else []
    left = [one for one in shown.panels if tokens is None or not _is_of_tokens(one)]
    parts += [panel(one, (thumbnails or {}).get(one.name)) for one in left]
    if shown.more > 0:
        least = "at least " if shown.of_is_least else ""
        parts.append(tag("p", f"and {least}{counted(shown.more, 'more part')}", class_="muted"))
    if not parts:
        parts.append(tag("p", "no fields", class_="muted"))
    return tag("article", tag("header", head), parts, class_="sample wide" if width > 1 else "sample")


def panel(one: Panel, thumbnail: bytes | str | None = None) -> Markup:
    """Return one part of a sample; `thumbnail` is a small JPEG of it, or the reason why there isn't one."""
    fields = tag("span", f"field {', '.join(one.fields)}") if one.fields else None
    label = tag("div", tag("b", one.name), fields, tag("span", about(one)), class_="label")
    body: list[Child] = []
    if isinstance(thumbnail, bytes):
        url = "data:image/jpeg;base64," + base64.b64encode(thumbnail).decode()
        body.append(tag("img", src=url, alt=f"{one.name}, {about(one)}"))
    if one.tree is not None and one.tree.kind in ("object", "array"):
        body.append(tag("pre", "\n".join(json_lines(one.tree))))
    elif one.kind == "text":
        body.append(tag("div", one.text or "(empty)", class_="text" if one.text else "text muted"))
    elif one.kind == "tokens":
        numbers = " ".join(map(str, one.ids[:64])) + (" …" if (one.of or 0) > 64 else "")
        body.append(tag("div", one.text, class_="text") if one.text else tag("pre", numbers or "no tokens"))
    elif one.text:
        body.append(tag("pre", one.text + (" …" if one.is_cut else "")))
    if isinstance(thumbnail, str):
        body.append(tag("p", thumbnail, class_="muted"))
    if one.note and one.kind in ("error", "audio", "video"):
        body.append(tag("p", one.note, class_="muted"))
    return tag("div", label, body, class_="panel error" if one.kind == "error" else "panel")


def about(one: Panel) -> str:
    """Describe a part in a line: `image/png, 640 × 480, 12.1 kB`."""
    words = [one.media_type or one.kind]
    if one.dtype is not None:
        words = [f"{one.dtype}[{', '.join(map(str, one.shape or ()))}]"]
    if one.width is not None and one.height is not None:
        words.append(f"{one.width:,} × {one.height:,}")
    if one.seconds is not None:
        words.append(seconds(one.seconds))
    if one.sample_rate:
        words.append(f"{one.sample_rate / 1000:g} kHz")
    if one.size_bytes is not None:
        words.append(human_bytes(one.size_bytes))
    if one.is_cut:
        words.append(f"{count(one.shown)} of {count(one.of)} {one.unit} shown")
    return ", ".join(words)


def tokens_of(run: TokenRun) -> Markup:
    """Return tokens in a row: documents in two tints with bars at their starts, tokens without loss dotted."""
    shade, segment, spans = 0, None, list[Child]()
    for one in run.tokens:
        shade += one.place > run.start and (one.begins or one.segment != segment)
        segment = one.segment
        spans.append(_token(one, "b" if shade % 2 else "a", run))
    facts = [f"{run.field}: {counted(run.of, 'token')}"]
    facts += (
        [f"tokens {count(run.start)} to {count(run.start + len(run.tokens))} shown"] if len(run.tokens) < run.of else []
    )
    facts += [counted(run.documents, "document")] if run.documents is not None else []
    facts += [f"{count(run.padding)} padding"] if run.padding else []
    facts += [f"{count(run.counted)} in the loss"] if run.counted is not None else []
    label = tag("div", tag("b", run.field), tag("span", ", ".join(facts[0:1])[len(run.field) + 2 :]),
                [tag("span", one) for one in facts[1:]], class_="label")  # fmt: skip
    shown = tag("div", spans or "no tokens", class_="tokens")
    return tag("div", label, shown, class_="panel")


def token_key(runs: Iterable[TokenRun]) -> Markup | None:
    """Return a legend of the marks used by any of these tokens."""
    shown = list(runs)
    ones = [one for run in shown for one in run.tokens]
    if not ones:
        return None
    words: list[tuple[Child, str]] = [(tag("span", "text", class_="a begins"), "start of a document")]
    if any(run.counted is not None for run in shown):
        words.append((tag("span", "text", class_="a off"), "not a training target"))
    if any(one.is_eos for one in ones):
        words.append((tag("span", "EOS", class_="a eos"), "end of a document"))
    if any(one.segment == 0 for one in ones):
        words.append((tag("span", "·", class_="pad"), "padding"))
    if any(one.whole for one in ones):
        words.append(
            (
                [tag("span", "é", class_="a whole"), tag("span", "", class_="b goes")],
                "a character split over several tokens",
            )
        )
    if any(not one.is_text and one.whole is None for one in ones):
        words.append((tag("span", r"\xe2", class_="a raw"), "a byte that isn't valid UTF-8 on its own"))
    if any(not run.has_texts for run in shown):
        words.append((tag("span", "17", class_="a id"), "an id: no tokenizer was given"))
    return tag("div", [tag("span", mark, " ", what) for mark, what in words], class_="tokens key")


def _token(one: Token, shade: str, run: TokenRun) -> Markup:
    is_padding = one.segment == 0
    kinds = ["pad"] if is_padding else [shade]
    kinds += ["begins"] if one.begins else []
    kinds += ["off"] if one.counts is False and not is_padding else []
    text = one.text
    if one.is_eos:
        text, kinds = text.strip() or "EOS", [*kinds, "eos"]
    elif not run.has_texts or not one.is_known:
        text, kinds = str(one.id), [*kinds, "id"]
    elif one.whole is not None:
        text, kinds = one.whole, [*kinds, "whole" if one.whole else "goes"]
    elif not one.is_text:
        kinds.append("raw")
    elif is_padding:
        text = "·"
    told = f"place {one.place}, id {one.id}" + ("" if one.position is None else f", position {one.position}")
    told += "" if one.target is None else f", target {one.target}"
    told += "" if one.is_text else f", bytes {one.text}"
    return tag("span", text.replace("\n", "↵\n"), class_=" ".join(kinds), title=told)


def _origin(origin: Origin) -> Markup:
    words = [origin.source]
    words += [f"index {count(origin.index)}"] if origin.index is not None else []
    words += [f"epoch {count(origin.epoch)}"] if origin.epoch is not None else []
    words += [f"rank {origin.rank}"]
    words += [f"replaces the excluded sample {count(origin.instead_of)}"] if origin.instead_of is not None else []
    made_of = origin.made_of or (None,) * len(origin.documents)
    documents = [
        f"document {count(number)}{f' of {whence}' if whence else ''} [{start:,}, {stop:,})"
        for (number, start, stop), whence in zip(origin.documents[:6], made_of, strict=False)
    ]
    documents += [f"and {len(origin.documents) - 6:,} more"] if len(origin.documents) > 6 else []
    lines = [tag("div", ", ".join(words), class_="muted")]
    lines += [tag("div", ", ".join(documents), class_="path")] if documents else []
    return tag("div", lines)


def _is_of_tokens(one: Panel) -> bool:
    return one.kind == "tokens" or one.name in ("loss_mask", "segment_ids", "positions", "cu_seqlens", "max_seqlen")
