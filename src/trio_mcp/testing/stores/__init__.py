"""Test suites for stores: subclass a suite to test your own store against the contract."""
