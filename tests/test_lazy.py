"""Patterns that are compiled at their first use."""

import re

import pytest

from trio_mcp.lazy import lazy_pattern


def test_lazily_compiled_pattern_matches_like_the_compiled_pattern():
    lazy, compiled = lazy_pattern("(a+)b", re.IGNORECASE), re.compile("(a+)b", re.IGNORECASE)
    for text in ("AAB", "xaab", "", "b"):
        assert str(lazy.match(text)) == str(compiled.match(text))
        assert lazy.sub(r"\1", text) == compiled.sub(r"\1", text)
    assert (lazy.pattern, lazy.flags) == (compiled.pattern, compiled.flags)
    assert lazy_pattern(rb"\s*+\{").fullmatch(b"  {")


def test_invalid_lazily_compiled_pattern_raises_at_its_first_use():
    broken = lazy_pattern("(")
    with pytest.raises(re.error, match="missing"):
        broken.match("")
