"""The scenarios of ``tests/interaction/server``, through a balancer."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.interaction.server import conftest as there

OF_STDIO = ("test_signals", "test_stdio", "test_unread_stderr", "test_descriptors")

LEFT_OUT = {"test_first_progress_value_of_a_call_is_sent_immediately"}
"""The first value waits until the storage has the event before it, and a later value takes its place meanwhile."""

for file in sorted(Path(there.__file__).parent.glob("test_*.py")):
    if file.stem in OF_STDIO:
        continue
    module = import_module(f"tests.interaction.server.{file.stem}")
    for name, function in vars(module).items():
        if name.startswith("test_") and name not in LEFT_OUT:
            globals()[name if name not in globals() else f"{name}_{file.stem}"] = function
