"""Follow JSON that arrives in pieces, and take one key of the outermost object out of it.

Regular expressions find the next character that matters, so that Python's own loop turns once for a
structure or an escape and not once for a character.
"""

from __future__ import annotations

import json
import re

LONE_SURROGATE = "\N{REPLACEMENT CHARACTER}"

# Where the tokenizer is. Depth inside a value is a counter, not a state.
_START, _GAP, _KEY, _COLON, _VALUE, _SPOKEN, _PLAIN, _DONE = range(8)

_NOT_SPACE = re.compile(r"[^ \t\n\r]")
_KEY_OR_END = re.compile(r'["}]')
_STRING_STOP = re.compile(r'["\\]')
_VALUE_START = re.compile(r"[^ \t\n\r:]")
_STRUCTURE = re.compile(r'["{}\[\],]')
# The longest run of a string that decodes by itself: escapes are whole, and no surrogates.
_DECODABLE = re.compile(r'(?:[^"\\]++|\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}))*+')
# An escape at the front, the two halves of a character as one; and what may become one with more characters.
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{0,4}|\\[^u]", re.DOTALL
)
_UNFINISHED = re.compile(
    r"\\u[0-9a-fA-F]{0,3}|\\u[dD][89abAB][0-9a-fA-F]{2}(\\(u([dD]([c-fC-F][0-9a-fA-F]?)?)?)?)?"
)
_decode = json.JSONDecoder(strict=False).decode


def _resolve_escape(escape: str) -> tuple[str, int] | None:
    """What the escape at the front says and how many characters it took; None if more is needed.

    An escape that JSON does not know is handed on as it was written.
    """
    whole = _ESCAPE.match(escape)
    if whole is None or _UNFINISHED.fullmatch(escape):
        return None
    try:
        said: str = _decode(f'"{whole[0]}"')
    except ValueError:
        said = whole[0]
    return (LONE_SURROGATE if "\ud800" <= said <= "\udfff" else said), whole.end()


def _refuse_constant(name: str) -> str:
    raise ValueError(f"{name} is not JSON")


class Tokenizer:
    """Follows the JSON text of one call's arguments and takes one key of the outermost object out.

    `feed` returns what to keep and what to speak of a fragment. It never raises: whether the whole
    was JSON is decided once, by `problem_of`, when all of it has come.
    """

    __slots__ = (
        "_captured",
        "_depth",
        "_escape",
        "_gap",
        "_in_string",
        "_kept_any",
        "_key",
        "_spoken_key",
        "_state",
        "_taking",
    )

    def __init__(self, spoken_key: str | None) -> None:
        self._spoken_key = spoken_key
        self._state = _START
        self._gap = ""  # the comma and the whitespace before a key, until it is known whether the key stays
        self._key = ""
        self._kept_any = False
        self._taking = False  # the value being read belongs to the spoken key
        self._captured: list[str] = []  # a spoken value that is not a string
        self._depth = 0
        self._in_string = False
        self._escape = ""  # the part of an escape that has come so far

    @property
    def complete(self) -> bool:
        """The outermost object is closed."""
        return self._state == _DONE

    @property
    def speaking(self) -> bool:
        return self._state == _SPOKEN

    def feed(self, fragment: str) -> tuple[str, str]:
        if '"' not in fragment and "\\" not in fragment and not self._escape:
            if self._state == _SPOKEN:  # most of a long text: nothing in it matters
                return "", fragment
            if self._state == _VALUE and self._in_string and not self._taking:
                return fragment, ""
        kept: list[str] = []
        spoken: list[str] = []
        position = 0
        end = len(fragment)
        while position < end:
            state = self._state
            if state == _SPOKEN:
                position = self._speak(fragment, position, spoken)
            elif state == _VALUE:
                position = self._value(fragment, position, kept, spoken)
            elif state == _GAP:
                position = self._between(fragment, position, kept)
            elif state == _KEY:
                position = self._read_key(fragment, position, kept)
            elif state == _COLON:
                position = self._colon(fragment, position, kept)
            elif state == _START:
                position = self._start(fragment, position, kept)
            else:
                kept.append(fragment[position:])
                break
        return "".join(kept), "".join(spoken)

    def _start(self, fragment: str, position: int, kept: list[str]) -> int:
        match = _NOT_SPACE.search(fragment, position)
        if match is None:
            kept.append(fragment[position:])
            return len(fragment)
        if match[0] != "{":
            self._state = _PLAIN
            return position
        kept.append(fragment[position : match.end()])
        self._state = _GAP
        return match.end()

    def _between(self, fragment: str, position: int, kept: list[str]) -> int:
        match = _KEY_OR_END.search(fragment, position)
        if match is None:
            self._gap += fragment[position:]
            return len(fragment)
        self._gap += fragment[position : match.start()]
        if match[0] == "}":
            kept.append(self._gap + "}")
            self._state = _DONE
        else:
            self._key = '"'
            self._state = _KEY
        return match.end()

    def _read_key(self, fragment: str, position: int, kept: list[str]) -> int:
        stop = self._string_end(fragment, position)
        self._key += fragment[position:stop]
        if self._in_string:
            return stop
        if self._is_spoken(self._key):
            self._taking = True
        else:
            self._taking = False
            gap = self._gap if self._kept_any else self._gap.replace(",", "", 1)
            kept.append(gap + self._key)
            self._kept_any = True
        self._gap = ""
        self._state = _COLON
        return stop

    def _string_end(self, fragment: str, position: int) -> int:
        """Past the closing quote of the string we are in, or past the fragment (`_in_string` says which)."""
        self._in_string = True
        if self._escape:
            self._escape = ""
            position += 1
        while True:
            match = _STRING_STOP.search(fragment, position)
            if match is None:
                return len(fragment)
            if match[0] == '"':
                self._in_string = False
                return match.end()
            position = match.end() + 1
            if position > len(fragment):
                self._escape = "\\"
                return len(fragment)

    def _is_spoken(self, key: str) -> bool:
        if self._spoken_key is None:
            return False
        if "\\" not in key:
            return key[1:-1] == self._spoken_key
        try:
            return bool(_decode(key) == self._spoken_key)
        except ValueError:
            return False

    def _colon(self, fragment: str, position: int, kept: list[str]) -> int:
        match = _VALUE_START.search(fragment, position)
        stop = len(fragment) if match is None else match.start()
        if not self._taking:
            kept.append(fragment[position:stop])
        if match is None:
            return stop
        if self._taking and match[0] == '"':
            self._state = _SPOKEN
            return stop + 1
        self._state = _VALUE
        self._depth = 0
        self._in_string = False
        return stop

    def _value(self, fragment: str, position: int, kept: list[str], spoken: list[str]) -> int:
        begin = position
        end = len(fragment)
        over = False
        while position < end:
            if self._in_string:
                position = self._string_end(fragment, position)
                continue
            match = _STRUCTURE.search(fragment, position)
            if match is None:
                position = end
                break
            sign = match[0]
            position = match.end()
            if sign == '"':
                self._in_string = True
            elif sign in "{[":
                self._depth += 1
            elif self._depth == 0 and sign in ",}":
                position -= 1
                over = True
                break
            elif sign in "}]":
                self._depth -= 1
        (self._captured if self._taking else kept).append(fragment[begin:position])
        if over:
            self._state = _GAP
            self._speak_captured(spoken)
        return position

    def _speak_captured(self, spoken: list[str]) -> None:
        value = "".join(self._captured).strip()
        self._captured.clear()
        if self._taking and value not in ("null", ""):
            spoken.append(value)

    def _speak(self, fragment: str, position: int, spoken: list[str]) -> int:
        """Decode the spoken string from here to its end, or to the end of the fragment."""
        end = len(fragment)
        while position < end:
            if self._escape:
                position = self._continue_escape(fragment, position, spoken)
                continue
            match = _DECODABLE.match(fragment, position)
            assert match is not None, "the pattern matches the empty string"
            run = match[0]
            if run:
                spoken.append(run if "\\" not in run else _decode(f'"{run}"'))
            position = match.end()
            if position == end:
                break
            if fragment[position] == '"':
                self._state = _GAP
                return position + 1
            self._escape = "\\"
            position += 1
        return position

    def _continue_escape(self, fragment: str, position: int, spoken: list[str]) -> int:
        self._escape += fragment[position]
        position += 1
        while self._escape:
            resolved = _resolve_escape(self._escape)
            if resolved is None:
                return position
            text, used = resolved
            spoken.append(text)
            rest = self._escape[used:]
            if rest and rest[0] != "\\":
                # What ended the escape is at most the one character just added: read it as text.
                self._escape = ""
                return position - len(rest)
            self._escape = rest
        return position


def problem_of(raw: str) -> str | None:
    """Why this is not the JSON of a call's arguments; None if it is."""
    if not raw.strip():
        return "no arguments arrived"
    try:
        json.loads(raw, parse_constant=_refuse_constant, parse_int=str, parse_float=str)
    except ValueError as error:
        return f"the arguments are not valid JSON: {error}"
    except RecursionError:
        return "the arguments are nested too deeply to be read"
    return None
