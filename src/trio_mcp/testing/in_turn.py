"""in_turn: make a handler of scripted answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any


def in_turn(*answers: Any) -> Callable[..., Awaitable[Any]]:
    """Return a handler that returns ``answers`` one after another, whatever the question, and raises answers that are
    exceptions.

    For the handlers of a client (``sampling``, ``elicitation``, ``elicitation_url``, ``roots``) and for those of a
    `RecordingContext`. A question beyond the last answer raises `AssertionError`.
    """
    left = list(answers)

    async def answer(*question: Any) -> Any:
        if not left:
            raise AssertionError(f"{len(answers)} answers were scripted, and one more was asked for: {question}")
        given = left.pop(0)
        if isinstance(given, BaseException):
            raise given
        return given

    return answer
