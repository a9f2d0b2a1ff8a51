"""The trio shell of one connection: runs the requests that come in, correlates replies with the requests that went out,
and sets a bound for everything.

`connection` holds the parts together; each of the other files is one part, with one idea.
"""
