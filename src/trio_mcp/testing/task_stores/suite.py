"""TaskStoreSuite has all tests of a store of tasks."""

from __future__ import annotations

from .leases import LeaseTests
from .pages import HintTests, PageTests
from .records import RecordTests


class TaskStoreSuite(RecordTests, PageTests, LeaseTests, HintTests):
    """The tests that every `TaskStore` has to pass, for each sentence of its docstrings.

    A test class inherits the tests, and opens the store; pytest needs ``pytest-trio`` and ``trio_mode = true``::

        class TestMyStore(TaskStoreSuite):
            @pytest.fixture(autouse=True)
            def storage(self, tmp_path):
                self.path = tmp_path / "tasks"

            def open_store(self):
                return MyStore(self.path)

    Real time passes in some tests: the clock of trio may not jump.
    """
