"""JSON validation of lines too long for memory: `fault_of` in pieces, with the same verdicts, reasons and offsets.

Regular expressions match whole runs of values up to three levels deep. The rest is parsed token by token. Memory is
limited to the open brackets of a line and less than one piece of text.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
import sys
from collections.abc import Callable, Iterable

PIECE_BYTES = 1 << 18
"""A good size of pieces: large enough for speed, and small even with four bytes per character."""

_AHEAD = 16  # no token needs more lookahead than this
_DEEP = 900
_MOST_PROBED = 200_000
_SPACE = r"[ \t\n\r]*+"
_TEXT = r'(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}(?=[\s\S]))*+'
_EXACT = (
    r"(?:-?(?:0|[1-9][0-9]{0,600})(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?(?=[ \t\r,\]}])|true|false|null|NaN|-?Infinity)"
)


def _values(levels: int) -> str:
    """Return a pattern of values nested up to `levels` deep. Each alternative begins with a different character."""
    if levels == 0:
        return rf'(?>"{_TEXT}"|{_EXACT})'
    one = _values(levels - 1)
    pair = rf'"{_TEXT}"{_SPACE}:{_SPACE}{one}{_SPACE}'
    of_list = rf"\[{_SPACE}(?>{one}{_SPACE}(?>,{_SPACE}{one}{_SPACE})*+)?+\]"
    of_map = rf"\{{{_SPACE}(?>{pair}(?>,{_SPACE}{pair})*+)?+\}}"
    return rf'(?>"{_TEXT}"|{_EXACT}|{of_list}|{of_map})'


_spaces = re.compile(_SPACE).match
_texts = re.compile(_TEXT).match
_digits = re.compile(r"[0-9]*+").match
_number = re.compile(r"-?[0-9]").match
_exponent = re.compile(r"[eE][-+]?[0-9]").match
_opens = re.compile(r"\[++").match
_closes = re.compile(r"\]++").match
_words = re.compile(r"true|false|null|NaN|-?Infinity").match


@functools.cache
def _runs() -> dict[str, Callable[[str, int], re.Match[str] | None]]:
    """Return patterns of a value and of the rest of a list and of a map. Compiled on demand, which takes 100 ms."""
    return {
        "value": re.compile(_values(3)).match,
        "[": re.compile(rf"(?>{_SPACE},{_SPACE}{_values(3)})*+").match,
        "{": re.compile(rf'(?>{_SPACE},{_SPACE}"{_TEXT}"{_SPACE}:{_SPACE}{_values(3)})*+').match,
    }


# Possible next tokens. The first element of a list or map may also be its end.
_VALUE, _FIRST_VALUE, _KEY, _FIRST_KEY, _COLON, _AFTER, _IN_TEXT, _IN_INTEGER, _IN_FRACTION, _IN_EXPONENT = range(10)
_EXPECTED = {
    _VALUE: "Expecting value",
    _FIRST_VALUE: "Expecting value",
    _KEY: "Expecting property name enclosed in double quotes",
    _FIRST_KEY: "Expecting property name enclosed in double quotes",
    _COLON: "Expecting ':' delimiter",
    _AFTER: "Expecting ',' delimiter",
}
_ENDED_BY_COMMA = {(_KEY, "}", "{"), (_VALUE, "]", "[")}
_NAMES_COMMAS = sys.version_info >= (3, 13)


def fault_of_pieces(pieces: Iterable[bytes]) -> str | None:
    """Return why Python's JSON reader rejects a line that comes in pieces, or None if it is valid.

    Memory: about ten times the longest piece.
    """
    check = _LineCheck()
    for piece in pieces:
        check.add(piece)
    return check.finish()


class _Fault(Exception):
    def __init__(self, what: str, place: int | None = None) -> None:
        super().__init__(what)
        self.what, self.place = what, place


class _LineCheck:
    def __init__(self) -> None:
        self._head = b""
        self._decoder: codecs.IncrementalDecoder | None = None
        self._num_bytes = 0
        self._is_blank = True
        self._text = _TextCheck()
        self._encoding_fault: str | None = None
        self._fault: _Fault | None = None

    def add(self, piece: bytes) -> None:
        self._is_blank = self._is_blank and not piece.strip()
        if self._decoder is None:
            self._head += piece
            if len(self._head) >= 4:
                piece, self._head = self._head, b""
                self._begin(piece)
        else:
            self._decode(piece)

    def finish(self) -> str | None:
        if self._decoder is None:
            self._begin(self._head)
        self._decode(b"", final=True)
        if self._encoding_fault is not None or self._fault is None:
            return self._encoding_fault
        if self._fault.place is None:
            return self._fault.what
        return (
            "a blank line" if self._is_blank else f"{self._fault.what}, character {self._fault.place + 1} of the line"
        )

    def _begin(self, head: bytes) -> None:
        encoding = json.detect_encoding(head)
        if encoding == "utf-8-sig":
            encoding, head = "utf-8", head[3:]
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
        self._decode(head)

    def _decode(self, piece: bytes, *, final: bool = False) -> None:
        if self._encoding_fault is not None or self._decoder is None:
            return
        held_bytes = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(piece, final)
        except UnicodeDecodeError as error:
            place = self._num_bytes - held_bytes + error.start
            self._encoding_fault = f"not UTF-8, byte {place + 1} of the line"
            return
        self._num_bytes += len(piece)
        if self._fault is None:  # data after a fault is still decoded, as `json` reports decoding errors first
            try:
                self._text.add(text, final=final)
            except _Fault as fault:
                self._fault = fault


class _TextCheck:
    def __init__(self) -> None:
        self._rest = ""
        self._before = 0  # characters before `_rest`
        self._state = _VALUE
        self._open: list[str] = []
        self._is_key = False
        self._text_place = self._comma_place = 0
        self._num_digits = 0
        self._most_deep = 0

    def add(self, text: str, *, final: bool) -> None:
        """Parse the next piece.

        Raises:
            _Fault: `json` rejects the text.
        """
        text = self._rest + text
        place, limit = 0, len(text) if final else len(text) - _AHEAD
        while place < limit:
            state = self._state
            if state == _IN_TEXT:
                place = self._go_on_in_text(text, place, limit)
            elif state >= _IN_INTEGER:
                place = self._go_on_in_number(text, place, limit)
            else:
                place = _end(_spaces, text, place)
                if place < limit:
                    place = self._take_token(text, place)
        if final:
            self._end_text(text)
        self._rest = text[place:]
        self._before += place

    def _end_text(self, text: str) -> None:
        end = self._before + len(text)
        if self._state == _IN_TEXT:
            raise _Fault("Unterminated string starting", self._text_place)
        if self._state == _IN_INTEGER:
            self._end_integer()
        elif self._state in _EXPECTED and not (self._state == _AFTER and not self._open):
            raise _Fault(_EXPECTED[self._state], end)
        if self._open:
            raise _Fault(_EXPECTED[_AFTER], end)

    def _take_token(self, text: str, place: int) -> int:
        state, letter = self._state, text[place]
        if state == _AFTER:
            return self._take_after(text, place)
        if state == _COLON and letter == ":":
            self._state = _VALUE
            return place + 1
        if state in (_KEY, _FIRST_KEY):
            if letter == '"':
                return self._begin_text(place, is_key=True)
            if letter == "}" and state == _FIRST_KEY:
                return self._close(place, 1)
        elif state in (_VALUE, _FIRST_VALUE):
            if letter == "]" and state == _FIRST_VALUE:
                return self._close(place, 1)
            found = self._take_value(text, place)
            if found > place:
                return found
        if _NAMES_COMMAS and self._open and (state, letter, self._open[-1]) in _ENDED_BY_COMMA:
            kind = "object" if state == _KEY else "array"
            raise _Fault(f"Illegal trailing comma before end of {kind}", self._comma_place)
        raise _Fault(_EXPECTED[state], self._before + place)

    def _take_value(self, text: str, place: int) -> int:
        """Return the end of the value at `place`, or of its parsed part; `place` itself if there is none."""
        letter = text[place]
        if len(self._open) < _DEEP and (found := _runs()["value"](text, place)) is not None:
            self._state = _AFTER
            return found.end()
        if letter == '"':
            return self._begin_text(place, is_key=False)
        if letter == "{":
            return self._open_more("{", 1, place)
        if letter == "[":
            return self._open_more("[", _end(_opens, text, place) - place, place)
        if (word := _words(text, place)) is not None:
            self._state = _AFTER
            return word.end()
        if (number := _number(text, place)) is not None:
            self._num_digits = 1
            self._state = _IN_INTEGER
            if text[number.end() - 1] == "0":
                self._num_digits = -1  # disallow further digits
            return number.end()
        return place

    def _take_after(self, text: str, place: int) -> int:
        if not self._open:
            raise _Fault("Extra data", self._before + place)
        if len(self._open) < _DEEP:
            found = _end(_runs()[self._open[-1]], text, place)
            if found > place:
                return found
        letter = text[place]
        if letter == ",":
            self._comma_place = self._before + place
            self._state = _VALUE if self._open[-1] == "[" else _KEY
            return place + 1
        if letter == "}" and self._open[-1] == "{":
            return self._close(place, 1)
        if letter == "]" and self._open[-1] == "[":
            return self._close(place, _end(_closes, text, place) - place)
        raise _Fault(_EXPECTED[_AFTER], self._before + place)

    def _open_more(self, bracket: str, count: int, place: int) -> int:
        self._open.extend([bracket] * min(count, _MOST_PROBED))
        if len(self._open) >= _DEEP:
            self._most_deep = self._most_deep or _most_deep()
            if len(self._open) > self._most_deep:
                raise _Fault("nested too deeply for Python's JSON reader")
        self._state = _FIRST_VALUE if bracket == "[" else _FIRST_KEY
        return place + count

    def _close(self, place: int, most: int) -> int:
        """Close up to `most` brackets of the same kind as the innermost one."""
        bracket, count = self._open[-1], 0
        while count < most and self._open and self._open[-1] == bracket:
            self._open.pop()
            count += 1
        self._state = _AFTER
        return place + count

    def _begin_text(self, place: int, *, is_key: bool) -> int:
        self._is_key = is_key
        self._text_place = self._before + place
        self._state = _IN_TEXT
        return place + 1

    def _go_on_in_text(self, text: str, place: int, limit: int) -> int:
        place = _end(_texts, text, place)
        if place >= limit:
            return place
        if text[place] == '"':
            self._state = _COLON if self._is_key else _AFTER
            return place + 1
        try:
            json.loads('"' + text[place : place + _AHEAD])
        except json.JSONDecodeError as error:
            at = self._text_place if error.pos == 0 else self._before + place + error.pos - 1
            raise _Fault(error.msg.removesuffix(" at"), at) from None
        raise _Fault("Unterminated string starting", self._text_place)

    def _go_on_in_number(self, text: str, place: int, limit: int) -> int:
        state = self._state
        if not (state == _IN_INTEGER and self._num_digits < 0):
            stop = _end(_digits, text, place)
            self._num_digits += stop - place
            place = stop
        if place >= limit:
            return place
        if state == _IN_INTEGER and text[place] == "." and _end(_digits, text, place + 1) > place + 1:
            self._state = _IN_FRACTION
            return place + 2
        if state != _IN_EXPONENT and (found := _exponent(text, place)) is not None:
            self._state = _IN_EXPONENT
            return found.end()
        if state == _IN_INTEGER:
            self._end_integer()
        self._state = _AFTER
        return place

    def _end_integer(self) -> None:
        most = sys.get_int_max_str_digits()
        if self._num_digits > most > 0:
            raise _Fault(f"an integer of more than {most} digits")


def _end(match: Callable[[str, int], re.Match[str] | None], text: str, place: int) -> int:
    found = match(text, place)
    return place if found is None else found.end()


def _most_deep() -> int:
    """Return how deep Python's JSON reader can nest brackets from the current stack depth."""
    few, many = 1, _MOST_PROBED
    while few < many:
        middle = (few + many + 1) // 2
        try:
            json.loads("[" * middle + "]" * middle)
            few = middle
        except RecursionError:
            many = middle - 1
    return few
