"""``trio-mcp call`` in a terminal: progress bar, forms, and Ctrl-C."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from tests.cli.commands import TRIO_MCP
from tests.cli.terminals import answer, in_terminal, plain

DESK = str(Path(__file__).with_name("desk.py"))
ERAS = ["legacy", "modern"]


def call(*words: str) -> list[str]:
    return [*TRIO_MCP, "call", *words]


async def test_terminal_shows_a_progress_bar_with_log_lines_above_it():
    async with in_terminal(call(DESK, "pack", "files=30")) as terminal:
        assert await terminal.read_to_end() == 0
    shown = plain(terminal.shown)
    assert "━━━━━" in shown
    assert "file [30]" in shown
    assert "30/30" in shown
    assert 'warning: {"box": "is \\u001b[31mold"}' in shown
    assert shown.endswith("packed 30\n")


@pytest.mark.parametrize("era", ERAS)
async def test_prompt_for_an_elicitation_field_is_repeated_until_the_answer_is_valid(era: str):
    async with in_terminal(call(DESK, "order", "--era", era)) as terminal:
        await answer(
            terminal,
            ("Dish: ", "ab\n"),
            ("shorter than 3", ""),
            ("Dish: ", "soup\n"),
            ("1) small", ""),
            ("size: ", "huge\n"),
            ("not one of the choices", "1\n"),
            ("plates [2]: ", "\n"),
            ("spicy (y/n) [n]: ", "y\n"),
            ("spicy = True", ""),
            ("edit [yes]: ", "\n"),
        )
        assert await terminal.read_to_end() == 0
    shown = plain(terminal.shown)
    assert "desk asks: What will it be?" in shown
    assert "accept Order(dish='soup', size='small', plates=2, spicy=True)" in shown


async def test_elicitation_form_can_be_edited_before_it_is_sent():
    async with in_terminal(call(DESK, "order")) as terminal:
        await answer(
            terminal,
            ("Dish: ", "soup\n"),
            ("size: ", "large\n"),
            ("plates [2]: ", "4\n"),
            ("spicy (y/n) [n]: ", "\n"),
            ("edit [yes]: ", "edit\n"),
            ("Dish [soup]: ", "stew\n"),
            ("size [large]: ", "\n"),
            ("plates [4]: ", "\n"),
        )
        terminal.type("\n")
        await terminal.read_until("dish = stew")
        terminal.type("y\n")
        assert await terminal.read_to_end() == 0
    assert "accept Order(dish='stew', size='large', plates=4, spicy=False)" in plain(terminal.shown)


@pytest.mark.parametrize("era", ERAS)
async def test_concurrent_elicitations_are_prompted_one_after_another(era: str):
    async with in_terminal(call(DESK, "both", "--era", era)) as terminal:
        await terminal.read_until("word: ")
        first = re.findall(r"asks: (\w+)\?", plain(terminal.shown))
        assert len(first) == 1
        terminal.type("one\n")
        await terminal.read_until("edit [yes]: ")
        assert len(re.findall(r"asks: (\w+)\?", plain(terminal.shown))) == 1
        terminal.shown = ""
        terminal.type("\n")
        await answer(terminal, ("word: ", "two\n"), ("edit [yes]: ", "\n"))
        assert await terminal.read_to_end() == 0
    second = {"first": "second", "second": "first"}[first[0]]
    result = plain(terminal.shown).splitlines()[-1]
    assert f"{first[0]}: one" in result
    assert f"{second}: two" in result


@pytest.mark.parametrize("era", ERAS)
async def test_ctrl_d_declines_an_elicitation_form(era: str):
    async with in_terminal(call(DESK, "order", "--era", era)) as terminal:
        await answer(terminal, ("Dish: ", "\x04"))
        assert await terminal.read_to_end() == 0
    assert "decline None" in plain(terminal.shown)


@pytest.mark.parametrize(("typed", "action"), [("yes\n", "accept"), ("\n", "decline"), ("\x04", "cancel")])
async def test_elicitation_url_is_shown_and_opened_only_if_the_user_agrees(typed: str, action: str):
    url = "https://bücher.example/sign-in?next=/\N{CYRILLIC SMALL LETTER A}"
    async with in_terminal(call(DESK, "visit", f"url={url}")) as terminal:
        await answer(terminal, ("do you agree to visit it? yes or no [no]: ", typed))
        assert await terminal.read_to_end() == 0
    shown = plain(terminal.shown)
    assert r"https://b\xfccher.example/sign-in?next=/\u0430" in shown
    assert "letters that look like others" in shown
    assert shown.endswith(f"{action}\n")


async def test_user_can_answer_a_sampling_request_in_the_terminal():
    async with in_terminal(call(DESK, "think")) as terminal:
        await answer(terminal, ("type the model's answer", "Eight.\n"))
        assert await terminal.read_to_end() == 0
    shown = plain(terminal.shown)
    assert "desk asks a language model, and there is none here" in shown
    assert "system: Be brief." in shown
    assert "user: How many legs has a spider?" in shown
    assert "a person at a terminal: Eight." in shown


@pytest.mark.parametrize("era", ERAS)
async def test_user_can_refuse_a_sampling_request_in_the_terminal(era: str):
    async with in_terminal(call(DESK, "think", "--era", era)) as terminal:
        await answer(terminal, ("type the model's answer", "\n"))
        # A legacy tool hears of the refusal, and fails; a modern call ends.
        assert await terminal.read_to_end() == (1 if era == "legacy" else 4)
    shown = plain(terminal.shown)
    assert "Refused; the server is notified." in shown
    assert ("the call ended: the user refused to write a response in place of a model" in shown) == (era == "modern")
    assert "Traceback" not in terminal.shown


@pytest.mark.parametrize("era", ERAS)
async def test_ctrl_c_cancels_the_call_and_shows_how_fast_the_server_answers_a_ping(tmp_path: Path, era: str):
    note = tmp_path / "note"
    async with in_terminal(call(DESK, "hang", f"note={note}", "--era", era)) as terminal:
        await terminal.read_until("hanging")
        terminal.type("\x03")
        assert await terminal.read_to_end() == 130
    shown = plain(terminal.shown)
    assert "Ctrl-C: cancelling the call; press it again to exit at once" in shown
    assert re.search(r"the call was cancelled; the server has received that, and answered a ping in \d+ ms", shown)
    assert note.read_text() == "the user pressed Ctrl-C"
    assert "Traceback" not in shown


@pytest.mark.parametrize("era", ERAS)
async def test_ctrl_c_in_an_elicitation_form_cancels_the_call(era: str):
    async with in_terminal(call(DESK, "order", "--era", era)) as terminal:
        await terminal.read_until("Dish: ")
        terminal.type("so\x03")
        assert await terminal.read_to_end() == 130
    assert "the call was cancelled; the server has received that" in plain(terminal.shown)


async def test_second_ctrl_c_kills_a_server_that_does_not_answer(tmp_path: Path):
    note = tmp_path / "note"
    async with in_terminal(call(DESK, "hang", f"note={note}")) as terminal:
        await terminal.read_until("hanging")
        server = int(note.read_text())
        os.kill(server, signal.SIGSTOP)
        terminal.type("\x03")
        await terminal.read_until("press it again to exit at once")
        terminal.type("\x03")
        assert await terminal.read_to_end() == 130
    assert "interrupted; the connection is closed" in plain(terminal.shown)
    assert "Traceback" not in terminal.shown
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


async def test_ctrl_c_while_connecting_exits_with_130():
    silent = "import sys; print('here', file=sys.stderr, flush=True); sys.stdin.read()"
    async with in_terminal(call("echo", "--stderr", "--", sys.executable, "-c", silent)) as terminal:
        await terminal.read_until("here")
        terminal.type("\x03")
        assert await terminal.read_to_end() == 130
    assert "interrupted; the connection is closed" in plain(terminal.shown)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_terminating_signal_cancels_the_call_and_restores_the_terminal(number: signal.Signals, tmp_path: Path):
    note = tmp_path / "note"
    async with in_terminal(call(DESK, "hang", f"note={note}")) as terminal:
        await terminal.read_until("hanging")
        os.kill(terminal.process.pid, number)
        assert await terminal.read_to_end() == 128 + number
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l"), "the cursor is back"
    assert note.read_text() == number.name


async def test_server_stderr_is_shown_without_terminal_control_characters():
    async with in_terminal(call(DESK, "die", "--stderr")) as terminal:
        assert await terminal.read_to_end() == 3
    assert terminal.shown.count("oh \ufffd[1mno\r\n") == 2, "once as it came, once among the last words"
    assert "\x1b[1mno" not in terminal.shown
