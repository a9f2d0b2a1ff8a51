"""Placeholders of variables in configuration files."""

from __future__ import annotations

import pytest

from trio_mcp.hosting.config_files import expanded_text

VARIABLES = {"A": "1", "B": "2", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("${A}${B}", "12"),
        ("${A:-x}${C:-x}", "1x"),
        ("${#A} ${A}", "${#A} 1"),
        ("${ ${A}", "${ 1"),
        ("${} $A {A} ${", "${} $A {A} ${"),
        ("${env:A}-${env:C:-a:b}", "1-a:b"),
        ("${C:-}", ""),
        ("${C:-\n}", "\n"),
        ("${C:-{}}", "{}"),
        ("${EMPTY}|${EMPTY:-d}|${EMPTY-d}|${EMPTY:=d}", "|d||d"),
        ("${A:-d}${C-d}${C:=d}", "1dd"),
        ("${A:+x}${EMPTY:+x}${EMPTY+x}${C+x}", "xx"),
        ("${A:?no}${EMPTY?no}", "1"),
        ("${C:-${A}}", "1"),
        ("${C:-<${D:-${env:E:-${B}}}>}", "<2>"),
        ("${C:-${EMPTY:-${EMPTY-x}}}", ""),
        ("${A:-${C}${input:key}}", "1"),
        ("${C:-${A}", "${C:-1"),
        ("${C:-${ x}", "${ x"),
        ("${M${A}}|${input:E${A}}", "${M1}|${input:E1}"),
        ("${C:-" * 20 + "}" * 20, ""),
    ],
)
def test_config_placeholder_is_expanded_in_the_same_way_as_in_a_shell(text: str, expanded: str) -> None:
    assert expanded_text(text, VARIABLES) == expanded


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${C}", "there is no variable C"),
        ("${C:-${D}}", "there is no variable D"),
        ("${C:-${D:-${E}}}", "there is no variable E"),
        ("${A:+${C}}", "there is no variable C"),
        ("${C?}", "there is no variable C"),
        ("${EMPTY:?}", "the variable EMPTY is empty"),
        ("a\0${A}", "the text must not contain a NUL character"),
        ("${input:a:-${B}}", "only its host knows what ${input:a:-2} stands for"),
        ("${input:key}", "only its host knows what ${input:key} stands for"),
        ("${input:api-key}", "only its host knows what ${input:api-key} stands for"),
        ("${C:-" * 100 + "}" * 100, "the placeholders are nested too deeply"),
    ],
)
def test_config_placeholder_without_value_raises_an_error_with_its_name(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r".*") as raised:
        expanded_text(text, VARIABLES)
    assert str(raised.value) == problem
