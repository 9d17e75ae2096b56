"""Hooks of mkdocs: make sure that no page fetches anything from other servers."""

from __future__ import annotations

import re
from typing import Any

_SHIM = re.compile(r'<script src="https://unpkg\.com/iframe-worker/shim"></script>')
_FETCHED = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*\b(?:src|href)=\"(?:https?:)?//[^\"]*\"")
_CANONICAL = 'rel="canonical"'


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Replace the search worker that would be fetched by `offline.js`."""
    base = "../" * page.url.count("/")
    output = _SHIM.sub(f'<script src="{base}offline.js"></script>', output)
    return _own(output, page.file.src_uri)


def on_post_template(output_content: str, *, template_name: str, config: Any) -> str:
    """Remove the search worker from templates such as 404.html."""
    return _own(_SHIM.sub("", output_content), template_name)


def _own(output: str, name: str) -> str:
    found = [one for one in _FETCHED.findall(output) if _CANONICAL not in one]
    if found:
        raise SystemExit(f"{name} fetches from elsewhere: {found[0]}")
    return output
