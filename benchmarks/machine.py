"""The machine of a run."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from .driver.cores import DRIVER_CORES, MEASURED_CORES

__all__ = ["described"]


def described() -> dict[str, str]:
    """What figures depend on."""
    apart = "apart from" if MEASURED_CORES != DRIVER_CORES else "on the same core as"
    return {
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores; the measured process {apart} the driver",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load": f"{os.getloadavg()[0]:.1f} before the run",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
