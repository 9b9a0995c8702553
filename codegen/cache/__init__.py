"""The on-disk cache: compiled code, plans, selected candidates, tuning records."""
