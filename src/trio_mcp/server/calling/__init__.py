"""How handlers are called: signatures, dependency injection, extensions, and the conversion of results to content."""
