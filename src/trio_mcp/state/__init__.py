"""The truth about one connection, without I/O, without trio and without a clock."""
