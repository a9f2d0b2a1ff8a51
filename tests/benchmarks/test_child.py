"""CPU time and memory of a measured process."""

import sys
import time

from benchmarks.driver.checks import within
from benchmarks.driver.child import Child


def test_benchmark_measures_increasing_cpu_time_of_a_busy_child_process() -> None:
    with Child([sys.executable, "-c", "while True: pass"]) as child:
        before = child.cpu()
        with within(60, "processor time"):
            while child.cpu() <= before + 0.02:
                time.sleep(0.01)  # the system tells nobody when a process has used some
        child.terminate()


def test_benchmark_measures_memory_of_a_child_process_in_bytes() -> None:
    held = 64 * 2**20
    with Child([sys.executable, "-c", f"held = b'x' * {held}\nprint(flush=True)\ninput()"]) as child:
        with open(child.output, "rb", closefd=False) as output:
            output.readline()
        assert child.memory() > held
