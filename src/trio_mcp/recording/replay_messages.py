"""Messages of both sides, as a replay keeps them."""

from __future__ import annotations

import math
from typing import Any, cast

from ..classes import define
from ..jsonrpc.messages import RequestId


@define(eq=False)
class ReceivedMessage:
    """A request or a notification of the other side, as it is now."""

    method: str
    params: Any
    id: RequestId | None = None

    @property
    def value(self) -> float:
        """The progress that a notification tells of."""
        found = self.member("progress")
        return found if isinstance(found, int | float) else -math.inf

    def member(self, name: str) -> Any:
        """Return a member of the parameters; `None` where there is none."""
        params: Any = self.params
        return cast("dict[str, Any]", params).get(name) if isinstance(params, dict) else None


@define(eq=False)
class SentRequest:
    """A request of the side that is played."""

    id: RequestId
    name: str
    token: RequestId | None = None
    last: Any = None
    """The parameters of the last progress that was recorded."""
    is_expected: bool = False
    """True once its answer in the recording was reached."""
