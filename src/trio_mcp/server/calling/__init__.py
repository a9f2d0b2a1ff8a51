"""How a handler is called: signatures, dependency injection, extensions, and how results become content."""
