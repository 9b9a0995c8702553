"""Eager mode: one op at a time, the tape that records them, arrays with gradients by rows."""
