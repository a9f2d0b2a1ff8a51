"""Question is one question of a request to its client."""

from __future__ import annotations

import attrs

from ...concurrency.wakeups import Sleeper
from ...protocol.fields import JSONObject
from ...protocol.types.input_required import InputRequest


@attrs.define(eq=False)
class Question:
    """A question of a request, from the asking until the answer has come or the question is given up."""

    key: str
    request: InputRequest
    sent: bool = False
    """True while the client knows of the question."""
    answer: JSONObject | None = None
    failure: Exception | None = None
    beside: tuple[Question, ...] | None = None
    """See `AskedBefore.beside`; `None` for a question that no other run is to know of."""
    asker: Sleeper = attrs.field(factory=Sleeper)
    """The task that waits for the answer."""

    @property
    def is_open(self) -> bool:
        """True until the answer has come, or the question has failed."""
        return self.answer is None and self.failure is None

    @property
    def is_waiting(self) -> bool:
        """True while the question waits for being sent."""
        return self.is_open and not self.sent

    def tell(self, answer: JSONObject) -> None:
        """Take the answer of the client."""
        self.answer = answer
        self.asker.wake()

    def fail(self, failure: Exception) -> None:
        """Fail the question, which cannot be asked."""
        self.failure = failure
        self.asker.wake()
