"""All probes with a few messages each, on our own servers and on the minimal reference servers."""

import os
import sys
from pathlib import Path

import pytest
from benchmarks.driver.checks import Mismatch
from benchmarks.driver.http_session import open_legacy, open_modern
from benchmarks.driver.session import open_pipes, open_socket
from benchmarks.measures import MEASURES
from benchmarks.probes import (
    calling,
    cancelling,
    echoing,
    fairness,
    holding,
    large,
    leaving,
    notifying,
    posting,
    starting,
    streaming,
)

HERE = Path(calling.__file__).parent.parent
FEW = 0.0001
TOLD = (starting.cold_start, notifying.notifications, notifying.progress, fairness.flood)
MAY_BE_ZERO = {"flood_after_cancel", *(measure.name for measure in MEASURES if measure.name.endswith("_cpu"))}
"""The clock of a process on another core may go in steps of some milliseconds: so few messages can take none."""
HOLD = {"session_memory", "get_memory", "listen_memory"}
"""May be nothing at all: the floor keeps no session."""
POSTED = (posting.post_1, posting.post_16, posting.post_64, streaming.streamed, leaving.leave)
ANSWERED = (echoing.echo, echoing.echo_64, cancelling.cancel_one, cancelling.cancel_500)


@pytest.fixture(autouse=True)
def few_large_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one large message shows, twenty do not show better."""
    monkeypatch.setattr(large, "_COUNT", 2)


def command(program: str) -> list[str]:
    path, *arguments = program.split()
    return [sys.executable, str(HERE / path), *arguments]


def names(*suites: str) -> set[str]:
    return {measure.name for measure in MEASURES if measure.suite in suites}


@pytest.mark.parametrize("program", ["floor_stdio", "trio_mcp_stdio"])
def test_stdio_benchmark_probes_measure_all_figures_in_order(program: str) -> None:
    figures: dict[str, float] = {}
    with open_pipes(command(f"servers/{program}.py"), FEW) as session:
        for probe in (*TOLD, *ANSWERED, echoing.sampling):
            figures |= probe(session)
    assert figures.keys() == names("stdio") - {"crowd_accept", "crowd_memory"}
    assert min(value for name, value in figures.items() if name not in MAY_BE_ZERO) > 0
    assert min(figures.values()) >= 0


@pytest.mark.parametrize("program", ["bare_websocket", "trio_mcp_websocket"])
def test_websocket_benchmark_probes_measure_all_figures_in_order(program: str) -> None:
    figures: dict[str, float] = {}
    with open_socket(command(f"servers/{program}.py"), FEW) as session:
        for probe in (notifying.notifications, *ANSWERED):
            figures |= probe(session)
    assert figures.keys() - {"echo_cpu"} == names("websocket")


@pytest.mark.parametrize("program", ["floor_stdio", "trio_mcp_stdio"])
def test_large_message_benchmark_runs_over_stdio(program: str) -> None:
    with open_pipes(command(f"servers/{program}.py"), FEW) as session:
        assert large.large(session)["large_cpu"] > 0


@pytest.mark.parametrize("program", ["floor_http.py httptools", "trio_mcp_http.py"])
def test_large_message_benchmark_runs_over_http(program: str) -> None:
    with open_modern(command(f"servers/{program}"), FEW) as session:
        assert large.posted_large(session)["large_cpu"] > 0


HTTP = ["floor_http.py h11", "floor_http.py written", "floor_http.py httptools", "trio_mcp_http.py"]


@pytest.mark.parametrize("program", [*HTTP, "trio_mcp_http.py --token abc"])
def test_http_benchmark_probes_measure_all_figures_in_order(program: str) -> None:
    figures: dict[str, float] = {}
    with open_modern(command(f"servers/{program}"), FEW) as session:
        for probe in (starting.cold_start, *POSTED, holding.listening):
            figures |= probe(session)
    assert figures.keys() == names("http") - {"told"}
    assert figures["stopped"] == 100
    assert min(value for name, value in figures.items() if name not in MAY_BE_ZERO | HOLD) > 0


@pytest.mark.parametrize("program", HTTP)
def test_http_benchmark_probes_of_the_legacy_revision_measure_all_figures_in_order(program: str) -> None:
    figures: dict[str, float] = {}
    with open_legacy(command(f"servers/{program}"), FEW) as session:
        for probe in (*POSTED, holding.sessions):
            figures |= probe(session)
    assert figures.keys() == names("http-legacy")
    assert figures["stopped"] == 100


@pytest.mark.parametrize("program", ["floor_client", "trio_mcp_client"])
def test_client_benchmark_probes_measure_all_figures(program: str) -> None:
    figures: dict[str, float] = {}
    server = [*command("servers/raw.py"), str(min(os.sched_getaffinity(0)))]
    with calling.open_client([*command(f"clients/{program}.py"), *server], FEW) as client:
        for probe in (calling.calls, calling.calls_64, calling.handled):
            figures |= probe(client)
        assert large.called_large(client)["large_cpu"] > 0
    assert figures.keys() == names("client")


def test_server_that_loses_a_notification_fails_the_benchmark(tmp_path: Path) -> None:
    floor = (HERE / "servers/floor.py").read_text()
    lossy = floor.replace("for number in range(count):\n        await", "for number in range(1, count):\n        await")
    assert lossy != floor
    for name in ("floor_stdio.py", "marking.py"):
        (tmp_path / name).write_text((HERE / "servers" / name).read_text())
    (tmp_path / "floor.py").write_text(lossy)
    with (
        pytest.raises(Mismatch, match="data of notification 0"),
        open_pipes([sys.executable, str(tmp_path / "floor_stdio.py")], FEW) as session,
    ):
        notifying.notifications(session)
