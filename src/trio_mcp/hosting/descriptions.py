"""Descriptions of members: data that users give of a member, and reports that a group gives of one.

Users give a `MemberDescription`, with a `RestartPolicy` that decides whether and when a failed member is restarted.
A group reports the `MemberState`, and raises the errors here; all other errors come from the client of the member,
unchanged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from ..classes import frozen, not_negative
from ..client.options import ClientOptions
from ..concurrency.misuse import check_options
from ..concurrency.time_limits import growing_delay
from ..connecting.targets import Target, target_of
from ..jsonrpc.errors import MCPError
from ..protocol.fields import JSONObject
from ..protocol.types.tools import Tool

if TYPE_CHECKING:
    from .transforms import ToolTransform


@frozen
class MemberDescription:
    """The target of a member, the options of its client, and its restart policy.

    MemberDescription(["python", "files.py"], restart=RestartPolicy())
    MemberDescription("ws://127.0.0.1:8765/mcp", options={"call_timeout": 30})
    MemberDescription(Command(["npx", "some-server"], env={"TOKEN": token}))
    """

    target: Target = attrs.field(converter=target_of)
    """A `Command`, `Address` or `InMemory`; or the words of a command, a URL, a `Server`."""
    restart: RestartPolicy | None = attrs.field(default=None, kw_only=True)
    """The policy for a failed member. `None` leaves the member failed until removed and added again."""
    options: ClientOptions = attrs.field(factory=ClientOptions, kw_only=True)
    """Handlers, callbacks and limits, which every ``open_*`` takes: see `ClientSettings`."""
    disabled: bool = attrs.field(default=False, kw_only=True)
    """True for a member that is known but not started."""
    tools: Mapping[str, ToolTransform] = attrs.field(factory=dict[str, Any], kw_only=True)
    """How the group shows tools of the member, by the names that the server gives them; ``"*"`` is for all others."""

    def __attrs_post_init__(self) -> None:
        renamed = dict[str, str]()
        for own, transform in self.tools.items():
            if transform.name is None:
                continue
            if own == "*":
                raise ValueError('tools["*"]: several tools cannot have one name')
            if renamed.setdefault(transform.name, own) != own:
                raise ValueError(f"tools: {own!r} and {renamed[transform.name]!r} are both renamed {transform.name!r}")
            if transform.name != own and transform.name in self.tools and not self._leaves_name(transform.name):
                raise ValueError(f"tools: {own!r} is renamed {transform.name!r}, which is the name of another tool")
        check_options("MemberDescription(options=...)", self.options, sorted(vars(ClientOptions)["__optional_keys__"]))

    def _leaves_name(self, name: str) -> bool:
        """Return whether the tool that the server calls ``name`` is hidden, or renamed itself."""
        transform = self.tools[name]
        return transform.hidden or transform.name not in (None, name)


def _share(_: Any, attribute: attrs.Attribute[Any], value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{attribute.name} must be between 0 and 1, not {value!r}")


@frozen(kw_only=True)
class RestartPolicy:
    """Restart a failed member, each time after twice the delay, until it has failed too often.

    A member whose target is invalid on any machine (`BadTarget`) is not restarted, nor a member whose user was asked to
    sign in, to no avail (`AuthorizationError`): the user would be asked again and again. A member whose command does
    not exist, or whose host does not answer, is restarted, since both may change. Only the member is restarted: an
    interrupted call is reported to its caller, and never repeated.
    """

    attempts: float = attrs.field(default=5, validator=not_negative)
    """Restarts in a row; ``math.inf`` is for ever."""
    first_delay: float = attrs.field(default=0.5, validator=not_negative)
    """Seconds before the first restart."""
    max_delay: float = attrs.field(default=30.0, validator=not_negative)
    """The longest delay in seconds."""
    jitter: float = attrs.field(default=0.5, validator=_share)
    """The share of a delay, from 0 to 1, by which the delay may be shorter, so that members that failed together do not
    start together."""
    stable_after: float = attrs.field(default=60.0, validator=not_negative)
    """Seconds of readiness after which the next failure counts as the first again."""
    random: Callable[[], float] = random.random
    """Returns numbers from 0 to 1. For tests."""

    def _delay(self, attempt: int) -> float:
        """Return the seconds to wait before restart number ``attempt``, counted from 1."""
        return growing_delay(
            attempt, first=self.first_delay, longest=self.max_delay, jitter=self.jitter, random=self.random
        )


class MemberState(StrEnum):
    """The state of a member."""

    STARTING = "starting"
    """The member connects for the first time. Calls wait."""
    READY = "ready"
    """The member can be called."""
    FAILED = "failed"
    """The member has failed, and is not started anew. Calls raise `MemberUnavailable`."""
    RESTARTING = "restarting"
    """The member has failed, and will be or is being started anew. Calls wait for it."""
    CLOSED = "closed"
    """The member was removed, or the group was left. Calls raise `MemberUnavailable`."""


@frozen
class MemberStatus:
    """The state of a member, with its last failure and its restarts."""

    name: str
    """Name of the member."""
    state: MemberState
    """The step of the member between start and end."""
    error: Exception | None = None
    """The cause of the last failure, if any: `ConnectionLost`, `PeerError`, `ProtocolViolation`, or another exception
    that opening the server raised. If a command didn't start, the text has the command and its last lines."""
    stderr: tuple[str, ...] = ()
    """The last lines of its process on standard error before the failure."""
    restarts: int = 0
    """Restarts in a row, made or due."""
    retry_in: float | None = None
    """Seconds from this status to the next start; `None` where no start is due."""
    problems: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """What is wrong with the lists of a ready member, in one line each: a list that failed, never ended, or wasn't
    answered yet. The keys are the names of the lists in the catalogue: ``tools`` for example."""

    def __hash__(self) -> int:
        return hash((self.name, self.state, self.error, self.stderr, self.restarts, self.retry_in))


def problems_in(status: MemberStatus) -> list[str]:
    """Return the problems of a status, each with the words for its list."""
    return [f"{name.replace('_', ' ')}: {problem}" for name, problem in status.problems.items()]


_REASONS: Final = {
    "new": "it hasn't been approved",
    "changed": "its server has changed it since it was approved",
    "refused": "its server has other tools that are new or changed",
}


@frozen
class HeldTool:
    """A tool that isn't offered before it is approved: see `Catalogue.held`."""

    name: str
    """The name that the tool would have in the catalogue."""
    member: str
    """Name of the member."""
    item: Tool = attrs.field(repr=False)
    """The tool as its server describes it now. A model must not see it."""
    reason: Literal["new", "changed", "refused"]
    """``refused``: the tool is as it was approved, but the policy is ``refuse``, and another tool of the member is
    not."""
    approved: JSONObject | None = attrs.field(default=None, repr=False)
    """The fields that were approved; `None` for a new tool, and where the pin is a hash alone."""

    def __str__(self) -> str:
        return f"{self.name[:200]!r} is held back: {_REASONS[self.reason]}. `trio-mcp pins approve` approves tools"


class MemberUnavailable(MCPError):
    """The member of this name cannot be called: it has failed, was removed, or never existed. Nothing was sent.

    ``error`` is the cause of a failure, and ``stderr`` its last lines on standard error, where the member is a child.
    """

    def __init__(
        self, member: str, reason: str, *, error: Exception | None = None, stderr: tuple[str, ...] = ()
    ) -> None:
        super().__init__(member, reason)
        self.member = member
        self.reason = reason
        self.error = error
        self.stderr = stderr

    def __str__(self) -> str:
        text = f"{self.member!r} {self.reason}"
        return text if self.error is None else f"{text}: {str(self.error) or type(self.error).__name__}"


class NotInCatalogue(MCPError, LookupError):
    """The name is not offered by any member. Nothing was sent."""
