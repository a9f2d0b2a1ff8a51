"""Load: a small run of `benchmarks.connections`, which checks that nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[3]


def test_many_websocket_clients_that_call_and_cancel_lose_no_response() -> None:
    command = [sys.executable, "-m", "benchmarks.connections", "50"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("nothing was lost\n")
