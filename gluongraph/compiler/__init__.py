"""From a graph to code: the pass pipeline, the choice among plans, tuning. `lower` is the entry point."""
