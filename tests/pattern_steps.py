"""Steps counts what a regular expression costs: the steps of backtracking, the same in every run and on every machine.

`re` counts nothing itself. `Steps` runs its parse tree in the way in which `re` does, without the shortcuts of its
engine, and finds the same matches. `pieces_of` returns texts of which inputs are made that a pattern may be slow for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

__all__ = ["UNBOUNDED", "Steps", "deep_recursion", "pieces_of", "repeats_in"]

_sre: Any = re
OP: Final = _sre._constants
UNBOUNDED: Final = 300
"""Repetitions from which on a bound is none: a text of a peer may be as long."""

Then = Callable[[int], int]
"""Goes on behind a part: from an index to the end of the match, or -1."""
_LOOPS: Final = (OP.MAX_REPEAT, OP.MIN_REPEAT, OP.POSSESSIVE_REPEAT)
_SAMPLES: Final = "a0-_ ./:\n=A\u00e9\x00"


@contextmanager
def deep_recursion() -> Generator[None]:
    """Let functions call each other as deep as the texts here are long."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(60_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _text(data: str | bytes) -> str:
    return data.decode("latin-1") if isinstance(data, bytes) else data


def _parsed(pattern: re.Pattern[Any]) -> Any:
    return _sre._parser.parse(pattern.pattern, pattern.flags)


def _fits(op: Any, value: Any, char: str, flags: int) -> bool:
    """Return whether one character fits one part of a pattern."""
    forms = {char, char.lower(), char.upper()} if flags & re.IGNORECASE else {char}
    if op is OP.LITERAL or op is OP.NOT_LITERAL:
        return any(ord(form) == value for form in forms if len(form) == 1) is (op is OP.LITERAL)
    if op is OP.ANY:
        return char != "\n" or bool(flags & re.DOTALL)
    if op is OP.RANGE:
        return any(value[0] <= ord(form) <= value[1] for form in forms if len(form) == 1)
    if op is OP.CATEGORY:
        name = str(value).rpartition("_")[2].lower()
        sign = {"digit": "d", "space": "s", "word": "w"}[name]
        sign = sign.upper() if "_NOT_" in str(value) else sign
        return re.match(f"\\{sign}", char, flags & re.ASCII) is not None
    assert op is OP.IN, op
    is_negated = value[0][0] is OP.NEGATE
    return any(_fits(kind, each, char, flags) for kind, each in value[is_negated:]) is not is_negated


class TooManySteps(AssertionError):
    """More steps than are counted."""


class Steps:
    """Counts the steps of ``pattern``."""

    def __init__(self, pattern: re.Pattern[Any], most: int = 300_000) -> None:
        self.count = 0
        self._most = most
        self._flags = pattern.flags | (re.ASCII if isinstance(pattern.pattern, bytes) else 0)
        self._text = ""
        self._groups: dict[int, tuple[int, int]] = {}
        self._is_full = False
        self._match = self._sequence(list(_parsed(pattern)), self._ended, self._flags)

    def run(self, method: str, text: str) -> list[tuple[int, int]]:
        """Count the steps of ``method`` for ``text``, and return where it matches."""
        self.count, self._text, self._is_full = 0, text, method == "fullmatch"
        if method in ("match", "fullmatch"):
            end = self._attempt(0)
            return [] if end < 0 else [(0, end)]
        found: list[tuple[int, int]] = []
        begin = 0
        while begin <= len(text):
            end = self._attempt(begin)
            if end >= 0:
                found.append((begin, end))
            begin = end if end > begin else begin + 1
        return found

    def _attempt(self, begin: int) -> int:
        self._groups.clear()
        return self._match(begin)

    def _ended(self, index: int) -> int:
        return -1 if self._is_full and index < len(self._text) else index

    def _step(self, steps: int = 1) -> None:
        self.count += steps
        if self.count > self._most:
            raise TooManySteps

    def _run_of(self, op: Any, value: Any, flags: int) -> Callable[[int, int], int]:
        """Return what counts a step for each character from an index on that fits one part, and for the one that does
        not, and returns where that is: at most so many characters further."""
        known = dict[str, bool]()

        def run(index: int, most: int) -> int:
            text, end = self._text, index
            last = min(len(text), index + most)
            while end < last:
                char = text[end]
                fits = known.get(char)
                if fits is None:
                    fits = known[char] = _fits(op, value, char, flags)
                if not fits:
                    break
                end += 1
            self._step(end - index + (end - index < most))
            return end

        return run

    def _sequence(self, parts: Sequence[Any], then: Then, flags: int) -> Then:
        for op, value in reversed(parts):
            then = self._part(op, value, then, flags)
        return then

    def _part(self, op: Any, value: Any, then: Then, flags: int) -> Then:
        if op in (OP.LITERAL, OP.NOT_LITERAL, OP.ANY, OP.IN):
            one = self._run_of(op, value, flags)
            return lambda index: then(index + 1) if one(index, 1) > index else -1
        if op in _LOOPS:
            return self._loop(op, value, then, flags)
        if op is OP.AT:
            return self._place(value, then, flags)
        if op is OP.BRANCH:
            ways = [self._sequence(list(each), then, flags) for each in value[1]]
            return lambda index: self._first(ways, index)
        if op is OP.SUBPATTERN:
            number, added, removed, inner = value
            return self._group(number, list(inner), then, (flags | added) & ~removed)
        if op is OP.ATOMIC_GROUP:
            alone = self._sequence(list(value), lambda index: index, flags)
            return lambda index: then(end) if (end := alone(index)) >= 0 else -1
        if op in (OP.ASSERT, OP.ASSERT_NOT):
            return self._around(value, op is OP.ASSERT, then, flags)
        assert op is OP.GROUPREF, op
        return lambda index: self._again(value, then, index)

    def _first(self, ways: list[Then], index: int) -> int:
        for way in ways:
            self._step()
            end = way(index)
            if end >= 0:
                return end
        return -1

    def _group(self, number: int | None, inner: list[Any], then: Then, flags: int) -> Then:
        if number is None:
            return self._sequence(inner, then, flags)
        begins: list[int] = []

        def closed(index: int) -> int:
            before, self._groups[number] = self._groups.get(number), (begins[-1], index)
            begin = begins.pop()
            end = then(index)
            begins.append(begin)
            if end < 0 and before is not None:
                self._groups[number] = before
            return end

        body = self._sequence(inner, closed, flags)

        def opened(index: int) -> int:
            begins.append(index)
            end = body(index)
            begins.pop()
            return end

        return opened

    def _again(self, number: int, then: Then, index: int) -> int:
        begin, end = self._groups.get(number, (0, -1))
        if end < 0:
            return -1
        self.count += end - begin
        word = self._text[begin:end]
        return then(index + len(word)) if self._text.startswith(word, index) else -1

    def _around(self, value: Any, wanted: bool, then: Then, flags: int) -> Then:
        direction, inner = value
        alone = self._sequence(list(inner), lambda index: index, flags)
        back = inner.getwidth()[0] if direction < 0 else 0

        def look(index: int) -> int:
            self._step()
            is_full, self._is_full = self._is_full, False
            found = index >= back and alone(index - back) >= 0
            self._is_full = is_full
            return then(index) if found is wanted else -1

        return look

    def _place(self, where: Any, then: Then, flags: int) -> Then:
        word, is_multiline = re.compile(r"\w", flags & re.ASCII).match, bool(flags & re.MULTILINE)

        def is_word(index: int) -> bool:
            return 0 <= index < len(self._text) and word(self._text, index) is not None

        def is_there(index: int) -> bool:
            text, size = self._text, len(self._text)
            if where is OP.AT_BEGINNING_STRING or (where is OP.AT_BEGINNING and not is_multiline):
                return index == 0
            if where is OP.AT_BEGINNING:
                return index == 0 or text[index - 1] == "\n"
            if where is OP.AT_END_STRING:
                return index == size
            if where is OP.AT_END:
                if is_multiline:
                    return index == size or text[index] == "\n"
                return index == size or (index == size - 1 and text[index] == "\n")
            return (is_word(index - 1) != is_word(index)) is (where is OP.AT_BOUNDARY)

        def look(index: int) -> int:
            self._step()
            return then(index) if is_there(index) else -1

        return look

    def _loop(self, op: Any, value: Any, then: Then, flags: int) -> Then:
        least, most, inner = value
        parts = list(inner)
        if len(parts) == 1 and parts[0][0] in (OP.LITERAL, OP.NOT_LITERAL, OP.ANY, OP.IN):
            return self._loop_of_one(op, least, most, parts[0], then, flags)
        if op is OP.POSSESSIVE_REPEAT:
            alone = self._sequence(parts, lambda index: index, flags)

            def possessive(index: int) -> int:
                count = 0
                while count < most and (end := alone(index)) >= 0:
                    count += 1
                    if end == index:
                        break
                    index = end
                return then(index) if count >= least else -1

            return possessive
        counts: list[tuple[int, int]] = []

        def once_more(index: int) -> int:
            count, begin = counts[-1]
            if index == begin and count >= least:
                return -1
            return at(count + 1, index)

        body = self._sequence(parts, once_more, flags)

        def inside(count: int, index: int) -> int:
            counts.append((count, index))
            end = body(index)
            counts.pop()
            return end

        def at(count: int, index: int) -> int:
            self._step()
            if count < least:
                return inside(count, index)
            if op is OP.MIN_REPEAT:
                end = then(index)
                return inside(count, index) if end < 0 and count < most else end
            end = inside(count, index) if count < most else -1
            return then(index) if end < 0 else end

        return lambda index: at(0, index)

    def _loop_of_one(self, op: Any, least: int, most: int, part: Any, then: Then, flags: int) -> Then:
        kind, value = part
        run = self._run_of(kind, value, flags)

        def greedy(index: int) -> int:
            end = run(index, most)
            while end - index >= least:
                found = then(end)
                if found >= 0 or op is OP.POSSESSIVE_REPEAT:
                    return found
                self._step()
                end -= 1
            return -1

        def lazy(index: int) -> int:
            end = run(index, least)
            if end - index < least:
                return -1
            while (found := then(end)) < 0:
                if end - index >= most or run(end, 1) == end:
                    return -1
                end += 1
            return found

        return lazy if op is OP.MIN_REPEAT else greedy


# Inputs


def _inner(op: Any, value: Any) -> list[Any]:
    """Return the sequences inside of a part."""
    if op in _LOOPS:
        return [value[2]]
    if op is OP.BRANCH:
        return list(value[1])
    if op is OP.SUBPATTERN:
        return [value[3]]
    if op is OP.ATOMIC_GROUP:
        return [value]
    return [value[1]] if op in (OP.ASSERT, OP.ASSERT_NOT) else []


def repeats_in(pattern: re.Pattern[Any]) -> list[int]:
    """Return the bounds of all repetitions in ``pattern``."""

    def walk(parts: Any) -> Iterator[int]:
        for op, value in parts:
            if op in _LOOPS:
                yield int(value[1])
            for each in _inner(op, value):
                yield from walk(each)

    return list(walk(_parsed(pattern)))


def _chars(op: Any, value: Any, flags: int) -> list[str]:
    """Return characters of each kind that fit a part of one character."""
    if op is OP.LITERAL:
        return [chr(value)]
    found = [each for each in _SAMPLES if _fits(op, value, each, flags)]
    if op is OP.IN:
        found += [chr(each) for kind, each in value if kind is OP.LITERAL and _fits(op, value, chr(each), flags)]
        found += [chr(each[0]) for kind, each in value if kind is OP.RANGE and _fits(op, value, chr(each[0]), flags)]
    return list(dict.fromkeys(found))[:6]


def pieces_of(pattern: re.Pattern[Any]) -> list[str]:
    """Return texts that ``pattern`` is about: its words, its characters, and what leads to each repetition."""
    found: dict[str, None] = {}
    flags = pattern.flags | (re.ASCII if isinstance(pattern.pattern, bytes) else 0)

    def sample(parts: Any, before: str) -> str:
        """Return a text for ``parts``, and note the pieces on the way, which stand behind the text ``before``."""
        text = ""
        for op, value in parts:
            if op in (OP.LITERAL, OP.NOT_LITERAL, OP.ANY, OP.IN):
                chars = _chars(op, value, flags)
                found.update(dict.fromkeys(chars))
                text += chars[0]
            elif op in _LOOPS:
                least, most, inner = value
                found[before + text] = None
                one = sample(inner, before + text)
                found[one] = None
                text += one * (least if least or most < 2 else 1)
                found[text] = None
            elif op in (OP.ASSERT, OP.ASSERT_NOT):
                found[sample(value[1], before + text)] = None
            else:
                texts = [sample(each, before + text) for each in _inner(op, value)]
                found.update(dict.fromkeys(texts))
                text += texts[0] if texts else ""
        return text

    found[sample(_parsed(pattern), "")] = None
    return [each for each in found if 0 < len(each) <= 60]
