"""The quoted workload runs on our own server, a few rounds of two users, and wrong answers are counted."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import which

import benchmarks
import pytest
from benchmarks.driver.http_session import Era, open_sessionless
from benchmarks.quoted.__main__ import shop
from benchmarks.quoted.seeding import seed
from benchmarks.quoted.users import Load, measured

pytestmark = pytest.mark.skipif(which("redis-server") is None, reason="redis-server is not installed")

FEW = Load(users=2, warmup=0.0, seconds=0.3)
SERVER = [sys.executable, str(Path(benchmarks.__file__).parent / "servers" / "trio_mcp_shop.py")]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_replica_benchmark_of_the_shop_example_returns_only_correct_answers(
    era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop(monkeypatch.setenv) as store:
        seed(store)
        with open_sessionless(SERVER, era) as session:
            figures = measured(session, FEW)
    assert figures["errors"] == 0
    assert figures["p99, ms"] >= figures["p50, ms"] > 0
    assert figures["/s"] > figures["calls /s"] > 0


def test_replica_benchmark_of_the_shop_example_counts_a_wrong_answer_as_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with shop(monkeypatch.setenv) as store:
        seed(store)
        store.ask("DEL", "shop:popular")
        with open_sessionless(SERVER, "modern") as session:
            figures = measured(session, FEW)
    assert figures["errors"] > 0
    assert "a wrong answer to search_products" in capsys.readouterr().out
