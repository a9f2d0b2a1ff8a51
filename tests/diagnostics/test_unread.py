"""Unread output of a process that is about to exit."""

from __future__ import annotations

import subprocess
import sys

from tests.patience import PATIENCE

FILLED = """
import os, _thread, threading
from trio_mcp.diagnostics.log import discard_unread_output

reads, writes = os.pipe()
os.set_blocking(writes, False)
try:
    while True:
        os.write(writes, b"x" * 65536)
except BlockingIOError:
    os.set_blocking(writes, True)
os.dup2(writes, 2)
"""
FOREIGN = """
# As the threads of a library in C: Python has heard of them, and does not hear of their end.
many, met, over = 20, threading.Semaphore(0), threading.Event()

def foreign():
    threading.current_thread()
    met.release()
    over.wait()

for _ in range(many):
    _thread.start_new_thread(foreign, ())
for _ in range(many):
    met.acquire()
over.set()
while _thread._count():  # of those that started here and still run
    pass
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)


def test_thread_that_writes_to_a_full_pipe_continues_when_the_unread_output_is_discarded() -> None:
    writing = """
thread = threading.Thread(target=os.write, args=(2, b"x" * 1_000_000))
thread.start()
discard_unread_output()
thread.join()
print("ended")
"""
    done = run(FILLED + writing)
    assert (done.stdout, done.returncode) == ("ended\n", 0)


def test_discarding_unread_output_succeeds_if_the_writing_threads_have_ended() -> None:
    done = run(FILLED + FOREIGN + "discard_unread_output()\nprint('ended')")
    assert (done.stdout, done.returncode) == ("ended\n", 0)
