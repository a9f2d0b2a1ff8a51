"""PageQuestions: shows a server's input requests (elicitation, sampling, roots) in the web inspector's page, and waits
until the user responds."""

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
from .runs import InvalidPageRequest, PageFeed, run_number

MOST_QUESTIONS: Final = 32
"""The maximum number of input requests of one kind that wait for the user at the same time."""
_REFUSED: Final = -1
"""Error code for a request that the user rejected (2025-11-25 sampling, Error Handling)."""
_MOST_ROOTS: Final = 100


@define(eq=False)
class _Question:
    number: int
    kind: str
    data: JSONObject
    """The parameters of the input request, as the specification defines them."""
    run: int | None
    """The number of the run that the input request belongs to; `None` if unknown."""
    answered: trio.Event = attrs.field(factory=trio.Event)
    answer: JSONObject = attrs.field(factory=dict[str, Any])

    def as_json(self) -> JSONObject:
        return {"what": "question", "id": self.number, "kind": self.kind, "data": self.data, "run": self.run}


class PageQuestions:
    """The server's input requests (elicitation, sampling, roots) that are waiting for the user.

    Each is published to ``feed``, and withdrawn when the user responds or its call ends.
    """

    def __init__(self, feed: PageFeed) -> None:
        self._feed = feed
        self._numbers = count(1)
        self._open: dict[int, _Question] = {}
        self._roots: list[JSONObject] = []
        self.revision: Revision = LATEST_LEGACY
        """The protocol revision that determines the form of input requests. A server that sends one before the
        connection is open is legacy."""

    def options(self) -> ClientOptions:
        """Return the options for the client that inspects the server.

        Their handlers show the server's input requests in the inspector's page, where the user responds.
        """
        return {
            "elicitation": self.form,
            "elicitation_url": self.url,
            "sampling": self.sample,
            "sampling_asks_user": True,
            "roots": self.roots,
            "max_questions": MOST_QUESTIONS,
        }

    def snapshot(self) -> Sequence[JSONObject]:
        """Return the input requests that are waiting for the user, as JSON data for pages."""
        return [question.as_json() for question in self._open.values()]

    # Questions of the server

    async def form(self, question: ElicitFormParams) -> ElicitResult:
        """Show an elicitation form in the inspector's page, and return what the user has entered. Raises `CodedError`
        if the form is too large to be shown."""
        check_form_size(question.requested_schema)
        shown = attrs.evolve(question, requested_schema=with_fitting_defaults(question.requested_schema))
        answer = await self._answer_to("form", self._plain(shown))
        return ElicitResult(answer["action"], answer.get("content"))

    async def url(self, question: ElicitURLParams) -> ElicitResult:
        """Show the URL that the server wants the user to visit, and return whether the user has agreed. The inspector
        itself doesn't open or fetch the URL."""
        check_url(question.url)
        return ElicitResult((await self._answer_to("url", self._plain(question)))["action"])

    async def sample(self, request: CreateMessageParams) -> CreateMessageResult:
        """Show a sampling request in the inspector's page. The user writes the response in place of a model. Raises
        `CodedError` if the user refuses."""
        answer = await self._answer_to("sampling", self._plain(request))
        if "text" not in answer:
            raise CodedError(_REFUSED, "the user refused the sampling request")
        return CreateMessageResult("assistant", TextContent(answer["text"]), "a person at a page", "endTurn")

    async def roots(self) -> list[Root]:
        """Let the user choose in the inspector's page which roots are sent to the server. The page suggests the user's
        last choice."""
        answer = await self._answer_to("roots", {"roots": self._roots})
        self._roots = answer["roots"]
        return [structure(root, Root) for root in self._roots]

    def _plain(self, params: Any) -> JSONObject:
        return cast("JSONObject", unstructure(params, self.revision))

    async def _answer_to(self, kind: str, data: JSONObject) -> JSONObject:
        if len(self._open) >= 3 * MOST_QUESTIONS:
            raise CodedError(INTERNAL_ERROR, "too many input requests are waiting for the user")
        question = _Question(next(self._numbers), kind, data, run_number.get())
        self._open[question.number] = question
        self._feed.publish(("question", question.number), question.as_json())
        try:
            await question.answered.wait()
        finally:
            del self._open[question.number]
            self._feed.publish(("question", question.number), {"what": "question.over", "id": question.number})
        return question.answer

    # Answers of the page

    def answer(self, number: int, answer: JSONObject) -> None:
        """Answer the input request with the number ``number`` with the data that the user has entered in the
        inspector's page.

        Raises `InvalidPageRequest` if the answer doesn't match the question, or the question is no longer open.
        """
        question = self._open.get(number)
        if question is None or question.answered.is_set():
            raise InvalidPageRequest("this input request is no longer open")
        question.answer = _CHECKS[question.kind](question.data, answer)
        question.answered.set()


def _elicited(data: JSONObject, answer: JSONObject) -> JSONObject:
    action = answer.get("action")
    if action not in ("accept", "decline", "cancel"):
        raise InvalidPageRequest("an answer must be 'accept', 'decline' or 'cancel'")
    if action != "accept" or "requestedSchema" not in data:
        return {"action": action}
    content: Any = answer.get("content")
    if not isinstance(content, dict):
        raise InvalidPageRequest("the content of a form must be an object")
    try:
        faults = SchemaValidator({"$schema": CHECKS_FORMATS} | data["requestedSchema"]).faults(content)
    except ValueError as error:
        raise InvalidPageRequest(f"the server's form has an invalid schema: {error}") from None
    if faults is not None:
        raise InvalidPageRequest(faults)
    return {"action": action, "content": content}


def _sampled(_: JSONObject, answer: JSONObject) -> JSONObject:
    if answer.get("action") == "decline":
        return {}
    text: Any = answer.get("text")
    if not isinstance(text, str):
        raise InvalidPageRequest("the model's answer must be text")
    return {"text": text}


def _rooted(_: JSONObject, answer: JSONObject) -> JSONObject:
    roots: Any = answer.get("roots")
    if not isinstance(roots, list) or len(cast("list[Any]", roots)) > _MOST_ROOTS:
        raise InvalidPageRequest(f"roots must be a list of at most {_MOST_ROOTS} roots")
    try:
        found = [structure(root, Root) for root in cast("list[Any]", roots)]
    except ValueError as error:
        raise InvalidPageRequest(str(error)) from None
    if not all(root.uri.startswith("file://") for root in found):
        raise InvalidPageRequest("the URI of a root must begin with file://")
    return {"roots": [{"uri": root.uri, "name": root.name} for root in found]}


_CHECKS: Final = {"form": _elicited, "url": _elicited, "sampling": _sampled, "roots": _rooted}
