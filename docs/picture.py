"""The picture of the README and of the site's first page, `docs/penstock.svg`, for light and dark themes."""

from __future__ import annotations

from html import escape

WIDTH, HEIGHT = 960, 320
PIPE_TOP, PIPE_BOTTOM = 112, 168
SOURCES = ("text, JSONL, Parquet", "images and audio in tars", "token files of any tool", "shards in a bucket")
STATIONS = (
    ("prepare", "index, tokenize,", "pack"),
    ("store", "in existing formats,", "complete or not at all"),
    ("check", "every byte; errors name", "the place and the fix"),
    ("convert", "between formats,", "verified by a digest"),
    ("feed", "any sample by position:", "stream[10**12]"),
)
GAINS = ("batches for torch and jax", "resumed at any step,", "on any number of ranks", "what did step 1,000 read?")
STYLE = """
.penstock { --ink: #17303b; --soft: #5b717b; --pipe: #0b5f7d; --on: #ffffff; --line: #9db4be }
@media (prefers-color-scheme: dark) {
  .penstock { --ink: #e3edf1; --soft: #9fb3bc; --pipe: #2a8fb3; --on: #ffffff; --line: #4a616c }
}
.penstock { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--ink) }
.name { font-size: 19px; font-weight: 600; fill: var(--on) }
.side { font-size: 14px }
.head { font-size: 12px; letter-spacing: 1px; fill: var(--soft) }
.note { font-size: 12.5px; fill: var(--soft) }
.flow { fill: none; stroke: var(--line); stroke-width: 2 }
.pipe { fill: var(--pipe) }
.weld { stroke: var(--on); stroke-opacity: .35; stroke-width: 2 }
"""


def picture() -> str:
    """Return the SVG: data enters on the left, passes through five stages, and leaves as batches."""
    left, right, middle = 226, 750, (PIPE_TOP + PIPE_BOTTOM) / 2
    step = (right - left) / len(STATIONS)
    size = f'width="{right - left}" height="{PIPE_BOTTOM - PIPE_TOP}"'
    parts = [
        f'<svg class="penstock" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>Penstock: from stored data to a training run</title>",
        f"<style>{STYLE}</style>",
        _text(8, 34, "head", "YOUR DATA"),
        _text(780, 34, "head", "YOUR TRAINING RUN"),
    ]
    for number, name in enumerate(SOURCES):
        y = 78 + 44 * number
        parts += [_text(8, y, "side", name), _flow(190, y - 5, left, PIPE_TOP + 10 + 12 * number)]
    parts.append(_flow(right, middle, 772, middle))
    for number, name in enumerate(GAINS):
        parts.append(_text(780, (101, 133, 153, 185)[number], "side", name))
    parts.append(f'<rect class="pipe" x="{left}" y="{PIPE_TOP}" {size} rx="8"/>')
    for number, (name, *notes) in enumerate(STATIONS):
        at = left + step * (number + 0.5)
        if number:
            weld = left + step * number
            parts.append(f'<line class="weld" x1="{weld:g}" x2="{weld:g}" y1="{PIPE_TOP}" y2="{PIPE_BOTTOM}"/>')
        parts.append(_text(at, middle + 6, "name", name, anchor="middle"))
        # Notes are wider than their stage, so they alternate below and above the pipe.
        top = PIPE_TOP - 32 if number % 2 else PIPE_BOTTOM + 28
        parts += [_text(at, top + 17 * row, "note", note, anchor="middle") for row, note in enumerate(notes)]
    centre = (left + right) / 2
    parts.append(_text(centre, HEIGHT - 50, "side", "interrupted and re-run: the same bytes", anchor="middle"))
    parts.append(_text(centre, HEIGHT - 27, "note", "one library, one command line", anchor="middle"))
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, kind: str, said: str, *, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(said)}</text>'


def _flow(x: float, y: float, to_x: float, to_y: float) -> str:
    bend = (x + to_x) / 2
    return f'<path class="flow" d="M{x:g} {y:g} C{bend:g} {y:g} {bend:g} {to_y:g} {to_x:g} {to_y:g}"/>'
