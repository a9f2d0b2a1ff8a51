"""Questions of a modern server, which come in results: their check, before any handler runs, and their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from ...jsonrpc.errors import CodedError, ProtocolViolation
from ...protocol.conversion.converters import unstructure
from ...protocol.revisions import Revision
from ...protocol.types.input_required import InputRequest
from .answers import Answers, NobodyAnswersHere

__all__ = ["Give", "prepared"]

Give: TypeAlias = Callable[[], Awaitable[Any]]
"""Runs the handler for one question, and gives its answer, plain data."""


def prepared(
    answers: Answers,
    method: str,
    questions: Mapping[str, InputRequest],
    revision: Revision,
    most: int,
    *,
    of_task: bool = False,
) -> dict[str, Give]:
    """Return what answers each of the ``questions``, which came in a result of ``method``, from a task if ``of_task``.
    All are checked before any handler runs, so that no user is asked for nothing: raises `ProtocolViolation` for a
    question that is not allowed, and for more than ``most``, and `NobodyAnswersHere`."""
    if len(questions) > most:
        raise ProtocolViolation(f"{method}: the server asks {len(questions)} questions at once")
    try:
        return {
            key: _giving(answers.prepare(each.method, each.params, revision, key, of_task=of_task), revision)
            for key, each in questions.items()
        }
    except NobodyAnswersHere:
        raise  # the server may ask, and we are the ones who cannot answer
    except CodedError as error:
        # mrtr, Server Requirements: MUST NOT send requests that the client did not declare.
        raise ProtocolViolation(f"{method}: the server asks for input that we cannot give: {error}") from None


def _giving(answer: Callable[[], Awaitable[Any]], revision: Revision) -> Give:
    async def give() -> Any:
        return unstructure(await answer(), revision)

    return give
