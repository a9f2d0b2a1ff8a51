"""Comparison: compares recorded messages with the messages of a replay.

Ids and times aren't compared. Neither are values that a side creates anew for each peer, such as cursors and task ids:
`Comparison.with_live_values` replaces the recorded values by those of the replay. Masked values are replaced in the
same way, if they came from the other side.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from ..classes import frozen
from ..protocol.meta import CLIENT
from .masking import MASK, Masking

_MADE_ANEW: Final = frozenset(("taskId", "nextCursor", "cursor", "requestState", "elicitationId"))
_NOT_COMPARED: Final = frozenset(
    (
        *("createdAt", "lastUpdatedAt", "pollInterval", "ttlMs", "remainingMs", "traceparent", "tracestate"),
        *("progressToken", "requestId", "subscriptionId", CLIENT),
    )
)
_MOST_DIFFERENCES: Final = 1000
_LONGEST: Final = 500


@frozen
class Difference:
    """A difference between a recorded message and the message of the replay."""

    where: str
    """The request and the path in its reply, for example ``tools/call echo (id 3): result.content[0].text``."""
    recorded: str
    live: str

    def __str__(self) -> str:
        return f"{self.where}: {self.recorded} was recorded, and now there is {self.live}"


class Comparison:
    """Compares recorded messages with the messages of the replay.

    It collects the differences, and maps recorded values, such as ids and masked secrets, to the values of the replay.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._masking = Masking()
        self.differences: list[Difference] = []

    def add_difference(self, where: str, recorded: str, live: str) -> None:
        """Add a difference to the list of differences. The list is limited to the first 1,000."""
        if len(self.differences) < _MOST_DIFFERENCES:
            self.differences.append(Difference(where, recorded[:_LONGEST], live[:_LONGEST]))

    def with_live_values(self, data: Any) -> Any:
        """Return a copy of recorded ``data`` in which recorded values, such as ids, are replaced by the corresponding
        values of the replay."""
        if isinstance(data, dict):
            members = cast("dict[str, Any]", data)
            return {self._live(name): self.with_live_values(value) for name, value in members.items()}
        if isinstance(data, list):
            return [self.with_live_values(each) for each in cast("list[Any]", data)]
        return self._live(data) if isinstance(data, str) else data

    def _live(self, text: str) -> Any:
        return self._values.get(text, text)

    def compare(self, name: str, recorded: Any, live: Any) -> None:
        """Compare the message ``name`` of the recording and of the replay, and add all differences to the list of
        differences."""
        self._walk(name + ": ", "", recorded, live)

    def _walk(self, name: str, path: str, recorded: Any, live: Any) -> None:
        key = path.rpartition(".")[2].rpartition("/")[2]
        if isinstance(recorded, str) and (recorded.startswith(MASK) or key in _MADE_ANEW) and isinstance(live, str):
            self._values[recorded] = live
        elif key in _NOT_COMPARED:
            return
        elif isinstance(recorded, dict) and isinstance(live, dict):
            self._walk_members(name, path, cast("dict[str, Any]", recorded), cast("dict[str, Any]", live))
        elif isinstance(recorded, list) and isinstance(live, list):
            olds, news = cast("list[Any]", recorded), cast("list[Any]", live)
            if len(olds) != len(news):
                self.add_difference(name + path, f"{len(olds)} items", f"{len(news)} items")
            for number, (old, new) in enumerate(zip(olds, news, strict=False)):
                self._walk(name, f"{path}[{number}]", old, new)
        elif recorded != live and not (isinstance(recorded, str) and MASK in recorded):
            self.add_difference(name + path, text_of(recorded), self.masked_text(live))

    def _walk_members(self, name: str, path: str, recorded: dict[str, Any], live: dict[str, Any]) -> None:
        recorded = {self._live(part): value for part, value in recorded.items()}
        if path.endswith("inputRequests") and len(recorded) == len(live):
            # MCP 2026-07-28, mrtr: servers choose the keys of input requests freely, so match them by position.
            self._values.update(zip(recorded, live, strict=True))
            recorded = dict(zip(live, recorded.values(), strict=True))
        for part in {**recorded, **live}:
            inner = f"{path}.{part}" if path else part
            if part in _NOT_COMPARED or part.rpartition("/")[2] in _NOT_COMPARED:
                continue
            if part not in live:
                self.add_difference(name + inner, text_of(recorded[part]), "nothing")
            elif part not in recorded:
                self.add_difference(name + inner, "nothing", self.masked_text(live[part]))
            else:
                self._walk(name, inner, recorded[part], live[part])

    def is_same(self, recorded: Any, live: Any) -> bool:
        """Return whether ``recorded`` data and ``live`` data of the replay are equal, without adding to the list of
        differences."""
        trial = Comparison()
        trial._values = dict(self._values)
        trial.compare("", recorded, live)
        return not trial.differences

    def masked_text(self, live: Any) -> str:
        """Return ``live`` data of the replay as text, with its secrets masked."""
        try:
            return text_of(self._masking.masked(live))
        except RecursionError:
            return "a value that is nested too deep to be shown"


def text_of(data: Any) -> str:
    """Encode ``data`` as JSON text."""
    return msgspec.json.encode(data).decode()
