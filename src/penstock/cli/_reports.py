"""What commands print: one JSON document or text for people, tables, plans of `--dry-run`, and reports on outputs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock._printable import printable_json, printable_lines
from penstock._secrets import redact
from penstock.cli._options import wants_json
from penstock.view.draw.lines import table_lines
from penstock.view.draw.words import counted, human_bytes

if TYPE_CHECKING:
    from penstock.reshape.outputs import Written


def emit(data: Any, text: str | Callable[[], str], **more: Any) -> None:
    """Print `data` and `more` as one JSON document with `--json`, otherwise `text`."""
    if wants_json():
        known = (data if isinstance(data, dict) else _plain(data)) | more
        click.echo(redact(printable_json(json.dumps(known, indent=1, ensure_ascii=False, default=_plain))))
    else:
        say(text if isinstance(text, str) else text())


def _plain(value: Any) -> Any:
    import msgspec

    is_record = dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct)
    return msgspec.to_builtins(value) if is_record else str(value)


def emit_line(data: Any, text: str) -> None:
    """Print `data` as one line of JSON, or `text`, immediately, for commands that keep running."""
    click.echo(redact(printable_json(json.dumps(data, ensure_ascii=False))) if wants_json() else text)


def say(text: str) -> None:
    """Print text for people to standard output."""
    click.echo(redact(printable_lines(text)))


def table(rows: Sequence[tuple[str, ...]], *, header: tuple[str, ...] = ()) -> str:
    """Return rows as aligned columns: numbers to the right, everything else to the left."""
    return "\n".join(table_lines(rows, header))


# --- outputs -----------------------------------------------------------------------------------------------------


def emit_written(
    data: Any, lines: list[str], reads: Sequence[str], writes: Sequence[str], options: dict[str, Any], **more: Any
) -> None:
    """Report outputs, or with `--dry-run` the files that would be read, written and replaced.

    Args:
        data: the report.
        lines: the same for people, a line for each output.
        reads: the inputs, as given.
        writes: the outputs.
        options: options of the command.
        more: further values of the JSON document.
    """
    if not options["dry_run"]:
        emit(data, "\n".join(lines), **more)
        return
    replaced = [(path, size) for path in writes if options["overwrite"] for size in _sizes(path)]
    read = [(path, size) for path in reads for size in _sizes(path)]
    text = [f"would read {path}: {_size(size)}" for path, size in read]
    text += [f"would write {one}" for one in lines]
    text += [f"would replace {path}: {_size(size)}" for path, size in replaced]
    more |= {"dry_run": True, "reads": _as_records(read), "replaces": _as_records(replaced)}
    emit(data, "\n".join([*text, "nothing was written (--dry-run)"]), **more)


def _as_records(sizes: list[tuple[str, int | None]]) -> list[dict[str, Any]]:
    return [{"path": path, "size_bytes": size} for path, size in sizes]


def _size(size_bytes: int | None) -> str:
    return "a pattern" if size_bytes is None else human_bytes(size_bytes)


def _sizes(path: str) -> Iterator[int | None]:
    """Yield the size of a file, or of all files of a directory; None for a pattern, nothing for a missing file."""
    from penstock.errors import PenstockError
    from penstock.store.patterns import is_pattern
    from penstock.store.place import place_of

    place = place_of(path).bare()
    with contextlib.suppress(PenstockError, OSError):
        if place.is_folder():
            yield sum(place.store.size(one) for one in place.store.list(place.path))
        elif place.exists():
            yield place.store.size(place.path)
        elif is_pattern(path):
            yield None


def emit_shared(
    data: Any, written: Sequence[Written], lines: list[str], reads: Sequence[str], options: dict[str, Any],
    *, work: str | None = None, **more: Any,
) -> None:  # fmt: skip
    """Call `emit_written`, or report one part of a distributed job; exit with 14 if parts are missing.

    `work` is the path to pass to `penstock status`, if it isn't the output. All other arguments are those of
    `emit_written`.
    """
    first = written[0]
    if first.missing:
        emit(data, missing_text(work or first.path, first.missing), **more)
    elif first.part is not None or first.was_complete:
        emit(data, "\n".join(map(describe, written)), **more)
    else:
        emit_written(data, lines, reads, [one.path for one in written], options, **more)
    end_unfinished(first.missing)


def left_out(excluded: int) -> str:
    """Return `; 3 excluded samples not copied`, or nothing."""
    return f"; {counted(excluded, 'excluded sample')} not copied" if excluded else ""


def describe(written: Written) -> str:
    """Return `out.pbin: 69 documents, 7,123 tokens, 14.3 kB`, or `out.pbin: part 1 of 8: …` for a part."""
    if written.was_complete:
        return "already complete: " + describe(dataclasses.replace(written, was_complete=False, part=None))
    if written.part is not None:
        index, count = written.part
        whole = describe(dataclasses.replace(written, part=None))
        return whole.replace(": ", f": part {index} of {count}: ", 1)
    size = human_bytes(written.size_bytes) + left_out(written.excluded)
    if written.tokens is None:
        unit = "line" if written.format == "jsonl" else "sample"
        return f"{written.path}: {counted(written.samples, unit)}, {size}"
    return f"{written.path}: {counted(written.samples, 'document')}, {counted(written.tokens, 'token')}, {size}"


def missing_text(output: str, missing: Sequence[int]) -> str:
    """Return the missing parts as an array expression, or what to do if the work isn't divided into parts.

    Args:
        output: the output of the job, or its work directory.
        missing: indices of missing parts.
    """
    from penstock.engine.status import status_of
    from penstock.errors import NotFound, PenstockError
    from penstock.store.place import place_of

    what = "work is missing"
    try:
        found = status_of(place_of(output))
        if found.shares is not None:
            return f"--array={array_expression(missing)}"
        what = f"{found.missing:,} of {found.tasks:,} tasks are missing" if found.missing else what
    except NotFound:
        pass
    except (PenstockError, OSError):
        return f"--array={array_expression(missing)}"
    return f"{output}: {what}. Run with --finish to complete them, or distribute them with --part I/N"


def end_unfinished(missing: Sequence[Any]) -> None:
    """Exit with status 14 if parts are missing."""
    if missing:
        from penstock.errors import PrepareError

        raise SystemExit(PrepareError.exit_status)


@contextlib.contextmanager
def keeping(output: str) -> Generator[None]:
    """Report at an interrupt how much work on an output is kept, and how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_kept(output)) from None


def _kept(output: str) -> str:
    from penstock.engine.status import status_of
    from penstock.store.place import place_of

    resume = "Re-run the same command to resume, or add --restart to start over"
    try:
        found = status_of(place_of(output))
    except Exception:  # whatever it is, the interrupt is what counts
        return f"stopped. {resume}"
    return f"stopped: {found.done:,} of {found.tasks:,} tasks kept. {resume}" if found.tasks else f"stopped. {resume}"


def array_expression(shares: Sequence[int]) -> str:
    """Return parts as the index list of a job array: `3,17,90-95`."""
    runs: list[list[int]] = []
    for share in sorted(shares):
        if runs and share == runs[-1][1] + 1:
            runs[-1][1] = share
        else:
            runs.append([share, share])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
