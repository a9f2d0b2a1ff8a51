"""The storage that replicas share by Redis: the link to the server, and the stores that stand on the link."""
