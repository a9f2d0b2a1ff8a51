"""PageQuestions are the questions of a server that wait for an answer in the page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Final, cast

import attrs
import trio

from ..classes import define
from ..client.options import ClientOptions
from ..jsonrpc.errors import INTERNAL_ERROR, CodedError
from ..protocol.converters import structure, unstructure
from ..protocol.fields import JSONObject
from ..protocol.form_defaults import CHECKS_FORMATS, with_fitting_defaults
from ..protocol.revisions import LATEST_LEGACY, Revision
from ..protocol.schema_validator import SchemaValidator
from ..protocol.types.content import TextContent
from ..protocol.types.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams, check_form_size, check_url
from ..protocol.types.sampling import CreateMessageParams, CreateMessageResult, Root
from .runs import PageFeed, run_number

MOST_QUESTIONS: Final = 32
"""Questions of one kind that wait for the user at the same time."""
_REFUSED: Final = -1
"""The user rejected the request (2025-11-25 sampling, Error Handling)."""
_MOST_ROOTS: Final = 100


class InvalidPageAnswer(ValueError):
    """The answer of the page does not fit. The message is for the user."""


@define(eq=False)
class _Question:
    number: int
    kind: str
    data: JSONObject
    """The question as the specification defines it."""
    run: int | None
    """The number of the run that the server asks for; `None` if that is unknown."""
    answered: trio.Event = attrs.field(factory=trio.Event)
    answer: JSONObject = attrs.field(factory=dict[str, Any])

    def as_json(self) -> JSONObject:
        return {"what": "question", "id": self.number, "kind": self.kind, "data": self.data, "run": self.run}


class PageQuestions:
    """The open questions, each told to ``feed``, and withdrawn with its answer or the end of its call."""

    def __init__(self, feed: PageFeed) -> None:
        self._feed = feed
        self._numbers = count(1)
        self._open: dict[int, _Question] = {}
        self._roots: list[JSONObject] = []
        self.revision: Revision = LATEST_LEGACY
        """The revision for the words of questions. A server that asks before the connection is open is legacy."""

    def options(self) -> ClientOptions:
        """Return the handlers among the options of a client."""
        return {
            "elicitation": self.form,
            "elicitation_url": self.url,
            "sampling": self.sample,
            "sampling_asks_user": True,
            "roots": self.roots,
            "max_questions": MOST_QUESTIONS,
        }

    def snapshot(self) -> Sequence[JSONObject]:
        """Return the open questions in the form for pages."""
        return [question.as_json() for question in self._open.values()]

    # Asked by the client

    async def form(self, question: ElicitFormParams) -> ElicitResult:
        """Have a form filled in. Raises `CodedError` for a form that is too large to be shown."""
        check_form_size(question.requested_schema)
        shown = attrs.evolve(question, requested_schema=with_fitting_defaults(question.requested_schema))
        answer = await self._answer_to("form", self._plain(shown))
        return ElicitResult(answer["action"], answer.get("content"))

    async def url(self, question: ElicitURLParams) -> ElicitResult:
        """Show the page that the server wants the user to visit. Nothing is opened or fetched before the user does."""
        check_url(question.url)
        return ElicitResult((await self._answer_to("url", self._plain(question)))["action"])

    async def sample(self, request: CreateMessageParams) -> CreateMessageResult:
        """Let the user write the answer of a model. Raises `CodedError` when the user refuses."""
        answer = await self._answer_to("sampling", self._plain(request))
        if "text" not in answer:
            raise CodedError(_REFUSED, "the user refused to answer in place of a model")
        return CreateMessageResult("assistant", TextContent(answer["text"]), "a person at a page", "endTurn")

    async def roots(self) -> list[Root]:
        """Let the user say which directories the server is told of; the last answer is offered again."""
        answer = await self._answer_to("roots", {"roots": self._roots})
        self._roots = answer["roots"]
        return [structure(root, Root) for root in self._roots]

    def _plain(self, params: Any) -> JSONObject:
        return cast("JSONObject", unstructure(params, self.revision))

    async def _answer_to(self, kind: str, data: JSONObject) -> JSONObject:
        if len(self._open) >= 3 * MOST_QUESTIONS:
            raise CodedError(INTERNAL_ERROR, "too many questions wait for the user")
        question = _Question(next(self._numbers), kind, data, run_number.get())
        self._open[question.number] = question
        self._feed.publish(("question", question.number), question.as_json())
        try:
            await question.answered.wait()
        finally:
            del self._open[question.number]
            self._feed.publish(("question", question.number), {"what": "question.over", "id": question.number})
        return question.answer

    # Answered by the page

    def answer(self, number: int, answer: JSONObject) -> None:
        """Take the answer of the user. Raises `BadAnswer` for one that does not fit, and for a question that waits no
        more."""
        question = self._open.get(number)
        if question is None or question.answered.is_set():
            raise InvalidPageAnswer("this question waits no more")
        question.answer = _CHECKS[question.kind](question.data, answer)
        question.answered.set()


def _elicited(data: JSONObject, answer: JSONObject) -> JSONObject:
    action = answer.get("action")
    if action not in ("accept", "decline", "cancel"):
        raise InvalidPageAnswer("an answer accepts, declines or cancels")
    if action != "accept" or "requestedSchema" not in data:
        return {"action": action}
    content: Any = answer.get("content")
    if not isinstance(content, dict):
        raise InvalidPageAnswer("a form is an object")
    try:
        faults = SchemaValidator({"$schema": CHECKS_FORMATS} | data["requestedSchema"]).faults(content)
    except ValueError as error:
        raise InvalidPageAnswer(f"the form of the server makes no sense: {error}") from None
    if faults is not None:
        raise InvalidPageAnswer(faults)
    return {"action": action, "content": content}


def _sampled(_: JSONObject, answer: JSONObject) -> JSONObject:
    if answer.get("action") == "decline":
        return {}
    text: Any = answer.get("text")
    if not isinstance(text, str):
        raise InvalidPageAnswer("the answer of a model is text")
    return {"text": text}


def _rooted(_: JSONObject, answer: JSONObject) -> JSONObject:
    roots: Any = answer.get("roots")
    if not isinstance(roots, list) or len(cast("list[Any]", roots)) > _MOST_ROOTS:
        raise InvalidPageAnswer(f"roots are a list of {_MOST_ROOTS} at most")
    try:
        found = [structure(root, Root) for root in cast("list[Any]", roots)]
    except ValueError as error:
        raise InvalidPageAnswer(str(error)) from None
    if not all(root.uri.startswith("file://") for root in found):
        raise InvalidPageAnswer("a root begins with file://")
    return {"roots": [{"uri": root.uri, "name": root.name} for root in found]}


_CHECKS: Final = {"form": _elicited, "url": _elicited, "sampling": _sampled, "roots": _rooted}
