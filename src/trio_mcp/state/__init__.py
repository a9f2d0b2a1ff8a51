"""The protocol state of one connection, without I/O, without trio and without a clock."""
