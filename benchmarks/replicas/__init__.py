"""What it costs to share: several replicas of one server, with Redis or a file of SQLite between them."""

from typing import Final

ALONE: Final = "alone"
"""The storage of a server that shares nothing."""
