"""What the client of the TypeScript SDK reports of answers to calls that it has cancelled, as told by
`docs/get-started/sdk-errors.md`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.pages import Page
from tests.patience import PATIENCE
from tests.peers.test_sdk_errors import LEAVING, PAGE, newest_1, page

__all__ = ["newest_1", "page"]


def errors(scripts: Path, tool: str, *command: str) -> list[Any]:
    done = subprocess.run(
        ["node", scripts / "late_answer.mjs", tool, *command],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return json.loads(done.stdout)


def test_typescript_client_reports_an_error_for_the_late_response_of_mcp_1_to_a_cancelled_call(
    scripts: Path, newest_1: str
) -> None:
    (error,) = errors(scripts, "wait", newest_1, "-W", "ignore", str(LEAVING))
    assert error.startswith("Received a response for an unknown message ID: ")
    assert "Received a response for an unknown message ID" in PAGE.text


def test_typescript_client_reports_no_error_after_it_cancels_a_call_at_a_trio_mcp_server(
    scripts: Path, page: Page
) -> None:
    assert errors(scripts, "answer_anyway", sys.executable, "answers_anyway.py") == []
