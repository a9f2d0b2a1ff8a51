"""Finds the readable parts of a line that isn't JSON, or is too long, so that no call waits forever for its reply. Also
extracts the message of an error that doesn't have the form of JSON-RPC.

Such lines come from healthy peers, too: a text that is cut inside a character, a number that is too large, an object
that is nested too deeply. Lines are read from the start. If no id is found there, as in ``{"result": …, "jsonrpc":
"2.0", "id": 7}``, they are read from the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, cast

import msgspec

from ..classes import value
from .errors import INTERNAL_ERROR
from .messages import RequestId, is_request_id

_MOST_STEPS: Final = 100_000
"""Maximum number of members and runs of brackets that are read from an invalid line, which takes about 50 ms. The rest
of the line is ignored."""
_LONGEST_ID: Final = 8192

_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_START: Final = re.compile(rb"\s*+\{")
_NAME: Final = re.compile(rb"\s*+(" + _STRING + rb")\s*+:\s*+", re.DOTALL)
_SCALAR: Final = re.compile(_STRING + rb'|[^\s",:\[\]{}]++', re.DOTALL)
_BRACKETS: Final = re.compile(rb'(?:[^"\[\]{}]++|' + _STRING + rb")*+([\[{]++|[\]}]++)", re.DOTALL)
_NEXT: Final = re.compile(rb"\s*+,")
_NEXT_OBJECT: Final = re.compile(rb"\s*+\}[\s,]*+\{")
_MOST_OBJECTS: Final = 1000
"""Maximum number of objects that are read on one line, and of members of a batch."""

_LOOKED_AT: Final = 65536
"""Number of bytes at the end of an invalid line that are examined."""
_REVERSED_STRING: Final = rb'"(?:[^"]++|"(?=\\))*+"'
"""Pattern of a string read backwards. A quote inside the string is followed by a backslash; the opening quote, which
comes last, is not."""
_REVERSED_END: Final = re.compile(rb"\s*+\}")
_REVERSED_MEMBER: Final = re.compile(
    rb"\s*+(" + _REVERSED_STRING + rb'|[^\s",:\[\]{}]++)\s*+:\s*+(' + _REVERSED_STRING + rb")", re.DOTALL
)


@value
class Salvage:
    """The fields that could be found in an invalid line, which should be a JSON object."""

    id: RequestId | None
    """Value of the member ``id``, or `None` if it can't be the id of a request."""
    is_request: bool
    is_reply: bool
    also: tuple[RequestId, ...] = ()
    """Ids of the other objects on the line, after the first object, that aren't requests."""


EMPTY_SALVAGE: Final = Salvage(None, is_request=False, is_reply=False)


def salvage(line: bytes | bytearray, tail: bytes | bytearray = b"") -> Salvage:
    """Return the readable fields of an invalid ``line``.

    The line is read from its start up to the first invalid part, and then from its end for an id, in bounded time and
    without recursion. If ``line`` is only the beginning of the message, ``tail`` is the end of the message.

    If the line is complete, members after the last inner bracket belong to the outermost object.
    """
    start = _START.match(line)
    if start is None:
        return EMPTY_SALVAGE
    names: set[bytes] = set()
    request_id: Any = None
    further: list[tuple[set[bytes], Any]] = []
    for name, text in _members(line, start.end()):
        if name == _OBJECT:
            if len(further) == _MOST_OBJECTS:
                break
            further.append((names, request_id))
            names, request_id = set(), None
        names.add(name)
        if name == b'"id"':
            request_id = _id_in(text)
    if further:
        (names, request_id), *others = (*further, (names, request_id))
        also = tuple(each for known, each in others if each is not None and b'"method"' not in known)
        return _salvaged(names, request_id, also)
    if request_id is None:
        for name, text in _last_members(tail or line):
            if tail:
                names.add(name)
            if name == b'"id"' and request_id is None:
                request_id = _id_in(text)
    return _salvaged(names, request_id)


def _salvaged(names: set[bytes], request_id: RequestId | None, also: tuple[RequestId, ...] = ()) -> Salvage:
    is_request = b'"method"' in names
    is_reply = not is_request and (b'"result"' in names or b'"error"' in names)
    return Salvage(request_id, is_request, is_reply, also)


_OBJECT: Final = b"{"
"""Marker that is yielded instead of a member's name when another object begins."""


def _members(line: bytes | bytearray, at: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the name and value of each field of the JSON object on an invalid line.

    The name has its quotes, and the value is text, or `None` for an array or object. Yield `_OBJECT` when another
    object on the line begins.
    """
    steps = 0
    while steps < _MOST_STEPS and (name := _NAME.match(line, at)):
        steps += 1
        scalar = _SCALAR.match(line, name.end())
        if scalar is not None:
            yield name[1], scalar[0]
            at = scalar.end()
        else:
            yield name[1], None
            depth, at = 0, name.end()
            while depth > 0 or at == name.end():
                brackets = _BRACKETS.match(line, at)
                steps += 1
                if brackets is None or steps > _MOST_STEPS:
                    return
                run = brackets[1]
                depth += len(run) if run[0] in b"[{" else -len(run)
                at = brackets.end()
            at += depth  # a surplus closing bracket belongs to the outer object
        following = _NEXT.match(line, at)
        if following is None:
            following = _NEXT_OBJECT.match(line, at)
            if following is None:
                return
            yield _OBJECT, None
        at = following.end()


def _last_members(line: bytes | bytearray) -> Iterator[tuple[bytes, bytes]]:
    """Yield the names and values of the fields at the end of an invalid line, the last field first.

    This ends at the last array or object.
    """
    text = line[-_LOOKED_AT:][::-1]
    found = _REVERSED_END.match(text)
    while found is not None and (member := _REVERSED_MEMBER.match(text, found.end())):
        yield bytes(member[2][::-1]), bytes(member[1][::-1])
        found = _NEXT.match(text, member.end())


def _id_in(text: bytes | None) -> RequestId | None:
    if text is None or len(text) > _LONGEST_ID:
        return None
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return found if is_request_id(found) else None


_MOST_WORDS: Final = 500
_LARGEST_CODE: Final = 2**31


def error_text(error: Any) -> str:
    """Return the text of the field ``error`` of a reply, at most 500 characters.

    The field may have any type. Return an empty string if the field contains no text.
    """
    text: Any = error
    if isinstance(error, dict):
        body = cast("dict[str, Any]", error)
        text = body.get("message")
        if isinstance(text, str) and text and isinstance(code := body.get("code"), str) and code_of(code, 0) == 0:
            text = f"{code}: {text}"
    if not isinstance(text, str):
        text = msgspec.json.encode(error).decode() if error else ""
    return text if len(text) <= _MOST_WORDS else f"{text[: _MOST_WORDS - 1]}…"


def code_of(code: Any, unknown: int = INTERNAL_ERROR) -> int:
    """Return the code of an error as an integer.

    Some peers send the code as a string or a float. For any other value, ``unknown`` is returned.
    """
    try:
        number = float(code) if isinstance(code, (str, float, int)) else 0.5
    except (ValueError, OverflowError):
        return unknown
    return int(number) if number.is_integer() and abs(number) < _LARGEST_CODE else unknown
