"""Eager mode: one op at a time, the tape that records them, row-sparse arrays."""
