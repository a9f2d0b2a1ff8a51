"""Processes that a handler runs end with it, as a tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio
from tests.patience import PATIENCE

from trio_mcp import RequestContext, Server, open_memory, run_process_tree

_GRANDCHILD = """
import os, signal, subprocess, sys, time
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""
_CHILD = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2], sys.argv[3]])
while not os.path.exists(sys.argv[2]) or not open(sys.argv[2]).read():
    time.sleep(0.01)
print("started", flush=True)
time.sleep(0 if sys.argv[4] == "ends" else 600)
"""


class Tree:
    """A process that starts another one, whose number is in a file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "grandchild"

    def command(self, grandchild: str, child: str) -> list[str]:
        return [sys.executable, "-c", _CHILD, _GRANDCHILD, str(self.file), grandchild, child]

    async def began(self) -> None:
        while not (self.file.exists() and self.file.read_text()):  # noqa: ASYNC110
            await trio.sleep(0.01)

    @property
    def is_gone(self) -> bool:
        stat = Path(f"/proc/{self.file.read_text()}/stat")
        try:
            return stat.read_text().rpartition(") ")[2].startswith("Z")  # nobody may be there to reap it
        except OSError:
            return True


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize("grandchild", ["gentle", "stubborn"])
async def test_cancelled_run_process_tree_ends_the_process_and_all_its_child_processes(
    tree: Tree, grandchild: str
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: run_process_tree(tree.command(grandchild, "stays"), grace=0.3))
        await tree.began()
        nursery.cancel_scope.cancel()
    assert tree.is_gone


async def test_run_process_tree_ends_child_processes_that_outlive_their_process(tree: Tree) -> None:
    ended = await run_process_tree(tree.command("stubborn", "ends"), grace=0.3, capture_stdout=True)
    assert (ended.returncode, ended.stdout) == (0, b"started\n")
    assert tree.is_gone


async def test_process_tree_started_by_a_handler_ends_when_the_request_ends(tree: Tree) -> None:
    server = Server("builder")

    @server.tool
    async def build(ctx: RequestContext) -> None:
        process = await ctx.nursery.start(run_process_tree, tree.command("gentle", "stays"))
        assert isinstance(process, trio.Process)
        await trio.sleep_forever()

    async with open_memory(server) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "build")
            await tree.began()
            nursery.cancel_scope.cancel()
        with trio.fail_after(PATIENCE):
            while not tree.is_gone:  # noqa: ASYNC110
                await trio.sleep(0.01)


async def test_run_process_tree_raises_the_errors_of_trio_run_process() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        await run_process_tree([sys.executable, "-c", "raise SystemExit(3)"])
    ended = await run_process_tree(["cat"], stdin=b"read", capture_stdout=True)
    assert ended.stdout == b"read"
    with pytest.raises(FileNotFoundError):
        await run_process_tree(["/nowhere/at/all"])
    with pytest.raises(ValueError, match=r"nursery\.start"):
        await run_process_tree(["cat"], stdout=subprocess.PIPE)
    with pytest.raises(ValueError, match="positive"):
        await run_process_tree(["cat"], grace=0)
