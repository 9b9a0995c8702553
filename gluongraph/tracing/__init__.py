"""A Python function becomes the graph of a training step: tracer, updates, precision, exchange of gradients."""
