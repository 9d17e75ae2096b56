"""Markers of a chat template, such as `<|im_start|>`, that are not tokens of the tokenizer: a common mistake."""

from __future__ import annotations

import re

from penstock.prepare.tokens.chat.template import ChatTemplate
from penstock.prepare.tokens.engines import Reference

_MARKER = re.compile(r"<[|｜][^<>|｜\s'\"]{1,64}[|｜]>|<(?:start|end)_of_[a-z_]{1,32}>")


def missing_markers(chat: ChatTemplate, reference: Reference) -> list[str]:
    """Return the markers in the text of a template that the tokenizer splits into several tokens, sorted."""
    markers = sorted({found for _, text in chat.templates for found in _MARKER.findall(text)})
    lengths = reference.encode([marker.encode() for marker in markers])[1].tolist() if markers else []
    return [marker for marker, length in zip(markers, lengths, strict=True) if length != 1]
