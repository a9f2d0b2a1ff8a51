"""How a handler is called: signatures, dependency injection, and how results become content."""
