"""Outcomes: the end of a task, made from the reply to its request, and made up where there is none."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from ..concurrency.contexts import contextmanager
from ..jsonrpc.codec import decode_value, encode_value
from ..jsonrpc.errors import INTERNAL_ERROR, TOO_BUSY, CodedError
from ..protocol.meta import SERVER_INFO
from ..stores.record_codec import UnreadableRecord
from ..stores.task_store import Outcome

TASK_LOST: Final = -31002
"""A code of ours: the task was not run to its end. Its effects may have taken place, wholly or in part."""

SERVER_STOPPED: Final = "the server was shut down while the task was running"
SERVER_RESTARTED: Final = "the server was restarted while the task was running"
NOT_RUN_AGAIN: Final = "the task was run as often as it may be, and the server was restarted each time"
EXPIRED: Final = "the time to live of the task was over"

_LONGEST_WORDS: Final = 1000


def failure(code: int, message: str) -> Outcome:
    """Return the outcome of a task that failed with an error of JSON-RPC."""
    return Outcome(encode_value({"code": code, "message": message}), is_error=True)


def store_unreachable() -> CodedError:
    """Return the error for a request that needs the store of tasks, while the store fails."""
    return CodedError(TOO_BUSY, "The store of tasks cannot be reached at present; try again later")


@contextmanager
def telling_of_the_store() -> Generator[None]:
    """Let a failure of the store, which the log was told of, be an error for the requestor in its own words."""
    try:
        yield
    except UnreadableRecord:
        raise  # the store works
    except OSError:
        raise store_unreachable() from None


def outcome_of(line: bytes, most: int) -> Outcome:
    """Return the outcome that the reply ``line`` tells, which may have ``most`` bytes."""
    if len(line) > most:
        return failure(INTERNAL_ERROR, f"Internal error: the result has more than the {most} bytes that are kept")
    reply: dict[str, Any] = decode_value(line)
    if "error" in reply:
        return Outcome(encode_value(reply["error"]), is_error=True)
    result: dict[str, Any] = reply["result"]
    # Parts of the reply rather than of the result: each reply that tells of the result has its own.
    result.pop("resultType", None)
    meta: dict[str, Any] = result.get("_meta", {})
    meta.pop(SERVER_INFO, None)
    if not meta:
        result.pop("_meta", None)
    return Outcome(encode_value(result), tells_failure=result.get("isError") is True)


def raised(outcome: Outcome) -> CodedError:
    """Return the error of an outcome that is one, as the request itself would have been answered."""
    error: dict[str, Any] = decode_value(outcome.json)
    return CodedError(error["code"], error["message"], error.get("data"))


def words_of(outcome: Outcome) -> str | None:
    """Return the words for people on a failure; `None` for anything else (2025-11-25 tasks, Task Execution Errors)."""
    if not (outcome.is_error or outcome.tells_failure):
        return None
    value: dict[str, Any] = decode_value(outcome.json)
    texts = [value["message"]] if outcome.is_error else [block.get("text") for block in value["content"]]
    return next((text[:_LONGEST_WORDS] for text in texts if isinstance(text, str)), None)
