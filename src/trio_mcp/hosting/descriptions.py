"""MemberDescription and MemberStatus: the configuration of one server in a group, and its current state.

Users pass a `MemberDescription`. Its `RestartPolicy` decides whether and when a failed member is restarted, and each
`ToolTransform` changes a tool of the member in the group's catalogue. A group reports the `MemberState`, and raises the
errors in this module; all other errors come from the member's client, unchanged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Any, Final, Literal, cast

import attrs

from ..classes import frozen, not_negative
from ..client.options import ClientOptions
from ..concurrency.misuse import check_options
from ..concurrency.time_limits import growing_delay
from ..connecting.targets import Target, target_of
from ..jsonrpc.errors import MCPError
from ..protocol.fields import JSONObject, as_object
from ..protocol.types.tools import Tool


@frozen
class MemberDescription:
    """The configuration of one server in a group.

    It contains how to connect to the server, the options of its client, and when to restart it.

    MemberDescription(["python", "files.py"], restart=RestartPolicy())
    MemberDescription("ws://127.0.0.1:8765/mcp", options={"call_timeout": 30})
    MemberDescription(Command(["npx", "some-server"], env={"TOKEN": token}))
    """

    target: Target = attrs.field(converter=target_of)
    """The server: a `Command`, `Address` or `InMemory`; or a command as a list, a URL, or a `Server`."""
    restart: RestartPolicy | None = attrs.field(default=None, kw_only=True)
    """What happens when the member fails. If `None`, the member stays failed until it is removed and added again."""
    options: ClientOptions = attrs.field(factory=ClientOptions, kw_only=True)
    """Handlers, callbacks and limits for the member's client, as for every ``open_*`` function: see
    `ClientSettings`."""
    disabled: bool = attrs.field(default=False, kw_only=True)
    """True if the member must not be started."""
    tools: Mapping[str, ToolTransform] = attrs.field(factory=dict[str, Any], kw_only=True)
    """The transforms of the member's tools, by the server's own names for them. ``"*"`` applies to all other tools."""

    def __attrs_post_init__(self) -> None:
        renamed = dict[str, str]()
        for own, transform in self.tools.items():
            if transform.name is None:
                continue
            if own == "*":
                raise ValueError('tools["*"] must not set a name: several tools cannot have the same name')
            if renamed.setdefault(transform.name, own) != own:
                raise ValueError(
                    f"tools: {own!r} and {renamed[transform.name]!r} are both renamed to {transform.name!r}"
                )
            if transform.name != own and transform.name in self.tools and not self._leaves_name(transform.name):
                raise ValueError(f"tools: {own!r} is renamed to {transform.name!r}, which is the name of another tool")
        check_options("MemberDescription(options=...)", self.options, sorted(vars(ClientOptions)["__optional_keys__"]))

    def _leaves_name(self, name: str) -> bool:
        """Return whether another tool of the group may be called ``name``, although this server has a tool with this
        name.

        The name is free if a transform hides or renames the tool that the server itself calls ``name``.
        """
        transform = self.tools[name]
        return transform.hidden or transform.name not in (None, name)


def _share(_: Any, attribute: attrs.Attribute[Any], value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{attribute.name} must be between 0 and 1, not {value!r}")


@frozen(kw_only=True)
class RestartPolicy:
    """The rules for restarting a server that has failed.

    The delay before a restart doubles each time. After too many failures, the server isn't restarted any more.

    A member isn't restarted if its target is invalid on any machine (`BadTarget`). Nor is it if its user was asked to
    sign in without success (`AuthorizationError`), since the user would be asked again and again. A member whose
    command doesn't exist, or whose host doesn't answer, is restarted, since both may change. Only the member is
    restarted: an interrupted call raises an error, and is never repeated.
    """

    attempts: float = attrs.field(default=5, validator=not_negative)
    """The maximum number of restarts in a row; ``math.inf`` for no limit."""
    first_delay: float = attrs.field(default=0.5, validator=not_negative)
    """The delay before the first restart, in seconds."""
    max_delay: float = attrs.field(default=30.0, validator=not_negative)
    """The maximum delay before a restart, in seconds."""
    jitter: float = attrs.field(default=0.5, validator=_share)
    """The share, from 0 to 1, by which a delay may be shortened at random, so that members that failed together don't
    restart together."""
    stable_after: float = attrs.field(default=60.0, validator=not_negative)
    """The number of seconds for which a member must be ready, so that its next failure counts as the first again."""
    random: Callable[[], float] = random.random
    """A function that returns random numbers from 0 to 1, for tests."""

    def _delay(self, attempt: int) -> float:
        """Return the delay in seconds before the restart with the number ``attempt``. The first restart has number
        1."""
        return growing_delay(
            attempt, first=self.first_delay, longest=self.max_delay, jitter=self.jitter, random=self.random
        )


def _names(given: Collection[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise TypeError(f"hidden_arguments must be a list of names:\n    wrong:  {given!r}\n    right:  [{given!r}]")
    return tuple(given)


@frozen(kw_only=True)
class ToolTransform:
    """Changes to one server's tool in a group. You can rename, hide or describe the tool.

    You can also preset or hide its arguments. Use it in `MemberDescription`.

    ToolTransform(name="find", description="Search the manuals.", presets={"folder": "manuals"})
    """

    name: str | None = None
    """The name that replaces the server's own name for the tool, without the name of the member."""
    title: str | None = None
    """The title that replaces the server's own title, which people see."""
    description: str | None = None
    """The description that replaces the server's own description."""
    hidden: bool = False
    """True if the tool is hidden, so that it can't be called."""
    presets: Mapping[str, Any] = attrs.field(factory=dict[str, Any], repr=False)
    """Arguments that each call of the tool has, whatever its caller sends. They aren't in the schema, and callers don't
    see their values."""
    hidden_arguments: Collection[str] = attrs.field(default=(), converter=_names)
    """Optional arguments that are removed from the schema, so that callers can't send them."""

    def __attrs_post_init__(self) -> None:
        if self.name == "":
            raise ValueError("the name of a tool must not be empty")

    def fault_in(self, tool: Tool) -> str | None:
        """Return the reason why this transform doesn't fit ``tool``. Return `None` if it fits."""
        required: Any = tool.input_schema.get("required")
        for name in self.hidden_arguments if isinstance(required, list) else ():
            if name in required and name not in self.presets:
                return f"its argument {name!r} is required, so it can't be hidden; give it a value in presets"
        return None

    def apply(self, tool: Tool) -> Tool:
        """Return a copy of ``tool`` with the title, description and input schema that this transform gives it. The copy
        keeps the name that the server uses, even if the transform renames the tool."""
        hidden = [*self.presets, *self.hidden_arguments]
        words = {"title": self.title, "description": self.description}
        given = {key: value for key, value in words.items() if value is not None}
        schema = _without(tool.input_schema, hidden) if hidden else tool.input_schema
        return attrs.evolve(tool, input_schema=schema, **given)

    def arguments(self, sent: Mapping[str, Any] | None) -> dict[str, Any]:
        """Convert the arguments ``sent``, with which the group's tool is called, to the arguments for the server's
        tool.

        Hidden arguments are removed, and preset arguments are added.
        """
        hidden = {*self.presets, *self.hidden_arguments}
        return {**{name: value for name, value in (sent or {}).items() if name not in hidden}, **self.presets}


def _without(schema: JSONObject, names: Collection[str]) -> JSONObject:
    """Return the JSON schema of an object (``schema``) without the properties ``names``."""
    changed = dict(schema)
    if "properties" in schema:
        properties = as_object(schema["properties"])
        changed["properties"] = {name: each for name, each in properties.items() if name not in names}
    if isinstance(required := schema.get("required"), list):
        changed["required"] = [name for name in cast("list[Any]", required) if name not in names]
    return changed


class MemberState(StrEnum):
    """The state of a server in a group, such as starting, ready or failed."""

    STARTING = "starting"
    """The member is connecting for the first time. Calls to it wait."""
    READY = "ready"
    """The member is connected, and can be called."""
    FAILED = "failed"
    """The member has failed, and won't be restarted. Calls raise `MemberUnavailable`."""
    RESTARTING = "restarting"
    """The member has failed, and is being restarted or will be. Calls to it wait."""
    CLOSED = "closed"
    """The member was removed, or the group was closed. Calls raise `MemberUnavailable`."""


@frozen
class MemberStatus:
    """The current status of a server in a group: its state, its last failure, and the number of its restarts."""

    name: str
    """The name of the member."""
    state: MemberState
    """The current state of the member."""
    error: Exception | None = None
    """The cause of the member's last failure, if any: `ConnectionLost`, `PeerError`, `ProtocolViolation`, or another
    exception raised by opening the server. If a command didn't start, the message contains the command and its last
    lines."""
    stderr: tuple[str, ...] = ()
    """The last lines that the member's process wrote to standard error before the failure."""
    restarts: int = 0
    """The number of restarts in a row that were made or are due."""
    retry_in: float | None = None
    """The number of seconds from this status to the next start; `None` if no start is due."""
    problems: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """The problems with the lists of a ready member, one line each: a list that failed, never ended, or hasn't been
    answered yet. The keys are the names of the lists in the catalogue, such as ``tools``."""

    def __hash__(self) -> int:
        return hash((self.name, self.state, self.error, self.stderr, self.restarts, self.retry_in))


def problems_in(status: MemberStatus) -> list[str]:
    """Return the problems in a server's status as texts. Each text begins with the name of the list (such as tools)
    that has the problem."""
    return [f"{name.replace('_', ' ')}: {problem}" for name, problem in status.problems.items()]


_REASONS: Final = {
    "new": "it hasn't been approved",
    "changed": "its server has changed it since it was approved",
    "refused": "its server has other tools that are new or changed",
}


@frozen
class HeldTool:
    """A tool that a group doesn't offer until a person approves it. See `Catalogue.held`."""

    name: str
    """The name that the tool will have in the catalogue after its approval."""
    member: str
    """The name of the member that has the tool."""
    item: Tool = attrs.field(repr=False)
    """The tool as its server describes it now. Don't show it to a model."""
    reason: Literal["new", "changed", "refused"]
    """The reason why the tool is held. ``refused`` means that the tool itself is unchanged, but the policy is
    ``refuse``, and another tool of the member is new or changed."""
    approved: JSONObject | None = attrs.field(default=None, repr=False)
    """The fields of the tool that were approved; `None` if the tool is new, or if the pin is only a hash."""

    def __str__(self) -> str:
        return f"{self.name[:200]!r} is held back: {_REASONS[self.reason]}. `trio-mcp pins approve` approves tools"


class MemberUnavailable(MCPError):
    """Raised if a server of a group can't be called. Nothing was sent.

    The server has failed, was removed from the group, or was never in the group.

    ``error`` is the cause of a failure. For a child process, ``stderr`` has its last lines on standard error.
    """

    def __init__(
        self, member: str, reason: str, *, error: Exception | None = None, stderr: tuple[str, ...] = ()
    ) -> None:
        super().__init__(member, reason)
        self.member = member
        """Name of the server in the group."""
        self.reason = reason
        """Why the server can't be called, such as ``has failed``."""
        self.error = error
        """The exception with which the server failed; `None` if it didn't fail."""
        self.stderr = stderr
        """Last lines of the child process on standard error; otherwise empty."""

    def __str__(self) -> str:
        text = f"{self.member!r} {self.reason}"
        return text if self.error is None else f"{text}: {str(self.error) or type(self.error).__name__}"


class NotInCatalogue(MCPError, LookupError):
    """Raised if no server of the group offers a tool, prompt or resource with this name. Nothing was sent."""
