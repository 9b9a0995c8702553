"""From a graph to code: the pipeline of passes, the choice among plans, measuring of candidates. `lower` is the way."""
