"""Data that would run in a page, if a page let them: in texts, keys, names of fields, parts, files and sources."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps

MARK = "pwned"
RUN = f"window.{MARK}=1;document.title='{MARK}'"
PAYLOADS = (
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"<img src=x onerror=\"{RUN}\">",
    f"\"><svg onload=\"{RUN}\">",
    f"'><body onload='{RUN}'>",
    f"\" autofocus onfocus=\"{RUN}\" x=\"",
    f"javascript:{RUN}//",
    f"</title></textarea></style></noscript><script>{RUN}</script>",
    f"</pre></bdi></td></table><iframe srcdoc=\"<script>parent.{RUN}</script>\"></iframe>",
    f"<div hx-get=/ hx-trigger=load hx-on::load=\"{RUN}\" hx-vals='js:{{x:(window.{MARK}=1)}}'>",
    f"<form><button formaction=javascript:{RUN}>x</button></form>",
    "<base href=http://127.0.0.1:1/><link rel=stylesheet href=http://127.0.0.1:1/x.css>",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:1/'>",
    "{{ 7*7 }}{% raw %}{{ ''.__class__.__mro__ }}",
    "<!--", "]]>", "\u2028\u2029\u202e\u2066", "\ud800", "&lt;script&gt;", "%3Cscript%3E", "\x00\x08\x1b]0;pwned\x07",
)  # fmt: skip

SVG = f'<svg xmlns="http://www.w3.org/2000/svg" onload="{RUN}"><script>{RUN}</script></svg>'.encode()
HTML = f'<!doctype html><html><body onload="{RUN}"><script>{RUN}</script></body></html>'.encode()

PARTS = {
    "svg": SVG,
    "html": HTML,
    "jpg": SVG,
    "json": b'"' + HTML.replace(b'"', b"'") + b'"',
    "png": b"\x89PNG\r\n\x1a\n" + HTML,
    "mp4": b"\0\0\0\x18ftypisom" + HTML,
}


def make_attacks(folder: Path) -> None:
    """A shelf of them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = [{"text": one, "in": {"list": [one, {"deep": one}]}} for one in PAYLOADS]
    rows += [{one: one, f"key {one}": [1, 2]} for one in PAYLOADS]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "lines.jsonl").write_text(lines + '{"broken": <script>' + RUN + "</script>\n")
    (folder / "parts").mkdir()
    with tarfile.open(folder / "parts" / "000.tar", "w") as tar:
        for number, one in enumerate(PAYLOADS):
            key = one.replace("/", "_").replace(".", "_").encode(errors="replace").decode()
            for name, data in PARTS.items():
                info = tarfile.TarInfo(f"{number:03}{key.replace(chr(0), '')}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    ps.prepare(folder / "parts", split_ratio=[1, 0, 0])
    hostile = "'\"><img src=x onerror=window.pwned=1>"
    with ps.create(folder / f"{hostile}.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        for size in range(2, 30):
            writer.write({"tokens": np.array([*range(1, size), 0], "u2")})
    columns = {f"<svg onload={MARK}>": "str", "n": "int"}
    with ps.create(folder / "columns", format="mds", columns=columns) as writer:
        for number, one in enumerate(PAYLOADS):
            writer.write({f"<svg onload={MARK}>": one.encode(errors="replace").decode(), "n": number})
    source = json.dumps(f"{hostile}.pbin")
    (folder / "<b>run.yaml").write_text(
        "penstock: 1\nbatch: {global_batch: 4}\n"
        f"stream: {{path: {source}, window: {{chunk: {{length: 8, labels: shift}}}}, shuffle: {{seed: 5}}}}\n"
    )
