"""An application without authorization imports nothing of it, and one with pays for what it uses."""

from __future__ import annotations

import subprocess
import sys


def loaded_by(code: str) -> set[str]:
    printed = subprocess.run(
        [sys.executable, "-c", f"import sys, trio_mcp\n{code}\nprint(*sys.modules)"],
        capture_output=True,
        check=True,
        text=True,
    )
    return set(printed.stdout.split())


def test_client_without_authorization_imports_no_oauth_modules() -> None:
    loaded = loaded_by("trio_mcp.open_http, trio_mcp.open_websocket")
    assert not [name for name in loaded if name.startswith("trio_mcp.auth.oauth_client")]
    assert not loaded & {"joserfc", "keyring", "webbrowser"}


def test_sign_in_imports_jwt_and_keyring_packages_only_when_used() -> None:
    loaded = loaded_by("trio_mcp.auth.OAuth(), trio_mcp.auth.ClientCredentials('me', client_secret='s')")
    assert not loaded & {"joserfc", "keyring", "webbrowser"}
