"""Log records as text of bounded length."""

from __future__ import annotations

import gc
import logging
import sys
import weakref

from trio_mcp.diagnostics.log_shares import LONGEST, bound, message_of, resolve

FORMATTER = logging.Formatter()


def record(message: object = "short", *values: object, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("trio_mcp", logging.ERROR, "file.py", 1, message, values, exc_info)


def test_short_log_record_is_written_unchanged() -> None:
    short = record("%s failed", "it", error=ValueError("oh dear"))
    bound(short)
    assert short.msg == "%s failed"
    assert short.args == ("it",)
    assert short.exc_text is None


def test_long_log_message_keeps_its_beginning_and_end() -> None:
    long = record("<%s>", "x" * 1_000_000)
    bound(long)
    text = FORMATTER.format(long)
    assert text.startswith("<xxx")
    assert text.endswith("xxx>")
    assert "990,002 characters are left out here" in text
    assert len(text) < LONGEST + 100


def test_long_traceback_keeps_its_beginning_and_end() -> None:
    long = record("failed", error=ExceptionGroup("many", [ValueError("y" * 1_000_000), KeyError("the last")]))
    bound(long)
    text = FORMATTER.format(long)
    assert "many" in text
    assert "the last" in text
    assert len(text) < LONGEST + 200


def test_log_record_converted_to_text_keeps_no_reference_to_its_exception() -> None:
    class Thing:
        pass

    def fail(thing: Thing) -> None:
        raise ValueError(f"with {type(thing).__name__}")

    thing = Thing()
    gone = weakref.ref(thing)
    try:
        fail(thing)
    except ValueError:
        resolved = logging.LogRecord("trio_mcp", 40, "file.py", 1, "%s failed", ("it",), sys.exc_info())
    assert resolve(resolved, keep_exception=False) > 100
    del thing
    gc.collect()
    assert gone() is None
    assert "ValueError: with Thing" in FORMATTER.format(resolved)
    assert FORMATTER.format(resolved).startswith("it failed\nTraceback")


def test_log_record_with_too_few_arguments_is_written_as_the_unformatted_message() -> None:
    assert message_of(record("%d of %d", 1)) == "%d of %d"
