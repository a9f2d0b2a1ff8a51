"""MemberDescription: a member of a group, as data."""

from __future__ import annotations

import attrs

from ..client.options import ClientOptions
from ..connecting.targets import Target, target_of
from .restarting import RestartPolicy


@attrs.frozen
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
