"""The MCP specification as data: types, methods, protocol revisions and the converters between them.

There is one attrs class per concept in its newest form, with its history beside each field; one row per method; and one
row per revision. Code outside this package reads facts from these rows, and never compares dates.
"""
