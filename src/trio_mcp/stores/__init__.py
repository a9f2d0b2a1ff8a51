"""Stores: where the records of tasks are kept, in memory or in a file that several processes share."""
