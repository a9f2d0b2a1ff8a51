"""The trio part of one connection: runs incoming requests, matches replies with outgoing requests, and limits
everything that can grow.

`connection` combines the parts; each of the other files has one part.
"""
