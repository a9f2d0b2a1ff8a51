"""Background tasks: work that continues after its request was answered, in both protocol versions (2025-11-25 and the
tasks extension)."""
