"""``trio-mcp prompt`` and ``trio-mcp complete``: prompts, and completion of their arguments."""

import json
from pathlib import Path

import pytest
from tests.cli.commands import TRIO_MCP, run

DESK = str(Path(__file__).with_name("desk.py"))
PROMPT = [*TRIO_MCP, "prompt"]
COMPLETE = [*TRIO_MCP, "complete"]


async def test_prompt_command_prints_each_message_after_its_role():
    ended = await run([*PROMPT, DESK, "praise", "dish=so=up"])
    assert (ended.status, ended.stdout, ended.stderr) == (0, "user: Praise the so=up, be warm.\x07\n", "")


async def test_prompt_command_prints_json_on_request():
    ended = await run([*PROMPT, DESK, "praise", "dish=tea", "tone=cool", "--json", "--era", "legacy"])
    (message,) = json.loads(ended.stdout)["messages"]
    assert message == {"role": "user", "content": {"type": "text", "text": "Praise the tea, be cool.\x07"}}


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["prais"], 2, "the server has no prompt 'prais'; it has praise"),
        (["praise", "fish=1"], 2, "the prompt has no argument 'fish'; it has dish, tone"),
        (["praise", "dish"], 2, "an argument must be like NAME=VALUE, not 'dish'"),
        (["praise"], 4, "the server responded with an error"),
    ],
)
async def test_invalid_request_of_the_prompt_command_is_reported_without_traceback(
    words: list[str], status: int, told: str
):
    ended = await run([*PROMPT, DESK, *words])
    assert (ended.status, ended.stdout) == (status, "")
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_complete_command_prints_suggestions_for_a_resource_template_one_per_line():
    ended = await run([*COMPLETE, DESK, "desk://menu/{day}/{dish}", "dish=so"])
    assert (ended.status, ended.stdout, ended.stderr) == (0, "soup\nsorbet\n", "")


async def test_complete_command_sends_the_other_prompt_arguments_that_the_user_has_given():
    ended = await run([*COMPLETE, DESK, "praise", "tone=wa", "dish=soup"])
    assert (ended.status, ended.stdout) == (0, "warm\nwary of soup\n")
    assert ended.stderr == "trio-mcp: there are more: 7\n"


async def test_complete_command_prints_json_on_request():
    ended = await run([*COMPLETE, DESK, "praise", "tone=", "--json"])
    assert json.loads(ended.stdout) == {"values": ["rm", "ry of None"], "total": 7, "hasMore": True}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["prais", "tone="], "the server has no prompt or resource template 'prais'; it has praise"),
        (["praise"], "the argument to complete must be like ARGUMENT=BEGINNING"),
        (["praise", "tone=", "tone="], "argument 'tone' occurs twice"),
    ],
)
async def test_complete_command_reports_an_invalid_request_as_a_usage_error(words: list[str], told: str):
    ended = await run([*COMPLETE, DESK, *words])
    assert (ended.status, ended.stdout) == (2, "")
    assert told in ended.stderr
