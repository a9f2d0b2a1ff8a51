"""The specification as data: types, methods, revisions and the converters between them.

One attrs class per concept in its newest shape, with the history beside the field; one row per method; one row per
revision. Code outside this package reads facts from those rows and never compares dates.
"""
