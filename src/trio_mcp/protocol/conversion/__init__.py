"""Conversion: plain data as objects of the specification, and objects as plain data, per revision."""
