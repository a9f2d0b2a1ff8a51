"""The store in a file of SQLite: for several processes on one machine."""
