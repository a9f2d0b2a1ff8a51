"""RestartPolicy: decides whether and when a failed member is restarted."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs

from ..concurrency.time_limits import growing_delay


def _not_negative(_: Any, attribute: attrs.Attribute[Any], value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{attribute.name} must not be negative, not {value!r}")


def _share(_: Any, attribute: attrs.Attribute[Any], value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{attribute.name} must be between 0 and 1, not {value!r}")


@attrs.frozen(kw_only=True)
class RestartPolicy:
    """Restart a failed member, each time after twice the delay, until it has failed too often.

    A member whose target is invalid on any machine (`BadTarget`) is not restarted, nor a member whose user was asked to
    sign in, to no avail (`AuthorizationError`): the user would be asked again and again. A member whose command does
    not exist, or whose host does not answer, is restarted, since both may change. Only the member is restarted: an
    interrupted call is reported to its caller, and never repeated.
    """

    attempts: float = attrs.field(default=5, validator=_not_negative)
    """Restarts in a row; ``math.inf`` is for ever."""
    first_delay: float = attrs.field(default=0.5, validator=_not_negative)
    """Seconds before the first restart."""
    max_delay: float = attrs.field(default=30.0, validator=_not_negative)
    """The longest delay in seconds."""
    jitter: float = attrs.field(default=0.5, validator=_share)
    """The share of a delay, from 0 to 1, by which the delay may be shorter, so that members that failed together do not
    start together."""
    stable_after: float = attrs.field(default=60.0, validator=_not_negative)
    """Seconds of readiness after which the next failure counts as the first again."""
    random: Callable[[], float] = random.random
    """Returns numbers from 0 to 1. For tests."""

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait before restart number ``attempt``, counted from 1."""
        return growing_delay(
            attempt, first=self.first_delay, longest=self.max_delay, jitter=self.jitter, random=self.random
        )
