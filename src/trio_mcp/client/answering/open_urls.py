"""OpenURLs: the URL elicitations of which a server has not said yet that the user is done (2025-11-25 only)."""

from __future__ import annotations

from typing import Any, Final

from ...jsonrpc.errors import PeerError
from ...protocol.conversion.converters import structure
from ...protocol.errors import URL_ELICITATION_REQUIRED, URLElicitationRequiredData
from ...protocol.fields import JSONObject
from ...protocol.types.notifications import ElicitationCompleteParams

__all__ = ["OpenURLs"]

_MOST: Final = 1000
_LONGEST: Final = 1000


class OpenURLs:
    """The ids of URL elicitations, kept until the elicitations are complete: the last 1,000, of up to 1,000 characters
    each.

    2025-11-25 elicitation, Completion Notifications: clients MUST ignore notifications referencing unknown or
    already-completed ids.
    """

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def asked(self, params: JSONObject) -> None:
        """Note the parameters of a question, unchecked, if the question is a URL elicitation."""
        if params.get("mode") == "url":
            self._note(params.get("elicitationId"))

    def required(self, error: PeerError) -> None:
        """Note the elicitations, if any, that an error of the server requires."""
        if error.code != URL_ELICITATION_REQUIRED:
            return
        try:
            required = structure(error.data, URLElicitationRequiredData)
        except ValueError:
            return  # the error itself is raised all the same
        for each in required.elicitations:
            self._note(each.elicitation_id)

    def _note(self, elicitation_id: Any) -> None:
        if isinstance(elicitation_id, str) and 0 < len(elicitation_id) <= _LONGEST:
            self._ids.pop(elicitation_id, None)
            self._ids[elicitation_id] = None
            if len(self._ids) > _MOST:
                del self._ids[next(iter(self._ids))]

    def completed(self, params: JSONObject) -> bool:
        """Take the parameters of a notification, unchecked; return whether the notification completes an open
        elicitation."""
        try:
            elicitation_id = structure(params, ElicitationCompleteParams).elicitation_id
        except ValueError:
            return False
        return self._ids.pop(elicitation_id, self) is None
