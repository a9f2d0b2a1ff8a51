"""The trio shell of one connection: runs what comes in, correlates what went out, bounds everything.

`duplex` holds it together; the other files are its parts, one idea each.
"""
