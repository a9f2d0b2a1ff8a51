"""Call handlers: signatures, dependency injection, extensions, and the conversion of results to content."""
