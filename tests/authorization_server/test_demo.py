"""``python -m examples.authorization``: the whole way, told in a terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import trio
from examples.authorization.provider import version
from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent.parent
PRESSING = """\
#!{python}
import sys, trio
sys.path.insert(0, "{root}")
from examples.authorization.provider import press
trio.run(press, sys.argv[1])
"""


@pytest.fixture
def cache(provider: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a user for whom the server was installed before."""
    (tmp_path / "trio-mcp").mkdir()
    shutil.copytree(provider, tmp_path / "trio-mcp" / version(), symlinks=True)
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}


async def demo(environment: dict[str, str], *options: str) -> str:
    """What the demo tells."""
    with trio.fail_after(PATIENCE):
        command = [sys.executable, "-m", "examples.authorization", *options]
        done = await trio.run_process(
            command, cwd=ROOT, env=environment, check=False, capture_stdout=True, capture_stderr=True, stdin=b""
        )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


async def test_authorization_demo_signs_in_requests_more_scopes_refreshes_and_revokes_tokens(
    cache: dict[str, str],
) -> None:
    told = await demo(cache)
    for words in (
        "status 401, and the way to a token:",
        "bearer scope: notes:read",
        "presses 'Allow' (by the demo)",
        "the authorization server tells of: registration, authorization, authorization_code",
        "the authorization server tells of: refresh_token",
        "write_note, sent again with the new token: 2 notes",
        "sign-in: alice may notes:read\n",
        "step-up: the same call went on, now with notes:read notes:write",
        "refresh: the next call brought a new token, and the user was not asked",
        "presses 'Deny' (by the demo)",
        "revocation: the next call failed with AuthorizationError, code 'access_denied'",
    ):
        assert words in told
    assert not re.search(r"[Bb]earer [\w-]{20,}|eyJ|code=|state=", told), "nothing that opens a door is told"


async def test_authorization_demo_with_the_browser_option_opens_the_browser_of_the_user(
    cache: dict[str, str], tmp_path: Path
) -> None:
    browser = tmp_path / "browser"
    browser.write_text(PRESSING.format(python=sys.executable, root=ROOT))
    browser.chmod(0o755)
    told = await demo({**cache, "BROWSER": str(browser)}, "--browser")
    assert "your browser shows the sign-in page: press a button there" in told
    assert "by the demo" not in told
    assert "revocation: the next call went on, after another sign-in" in told
