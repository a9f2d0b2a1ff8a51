"""Reports: what a peer's client saw, step by step, as it told it in JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import attrs
from tests.peers.journals import Journal

__all__ = ["Report", "steps_in"]


def steps_in(lines: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What each step returned or raised, by its name."""
    entries = [json.loads(line) for line in lines]
    return {entry.pop("step"): entry for entry in entries}


@attrs.frozen(eq=False)
class Report:
    """What one client saw."""

    name: str
    era: str
    journal: Journal
    steps: dict[str, dict[str, Any]]
    over: str = "stdio"

    def ending(self, reason: str) -> str:
        """How a handler saw its call end that the client left with ``reason``: over HTTP, a modern client tells its
        reason to nobody, but closes the response."""
        if self.over == "http" and not self.is_legacy:
            return "disconnect: the client closed the response"
        return f"peer: {reason}"

    @property
    def is_legacy(self) -> bool:
        return self.era == "legacy"

    def saw(self, step: str) -> Any:
        """What a step returned; it must not have failed."""
        entry = self.steps[step]
        assert "raised" not in entry, entry
        return entry["saw"]

    def error(self, step: str) -> tuple[str, int | str | None, str, Any]:
        """Type, code, message and data of what a step raised."""
        entry = self.steps[step]
        assert "raised" in entry, entry
        return entry["raised"], entry["code"], entry["message"], entry["data"]

    def text(self, step: str) -> str:
        """The text that a tool returned."""
        (content,) = self.saw(step)["content"]
        return content["text"]
