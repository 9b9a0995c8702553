"""The expression of an element of a kernel, evaluated at an index from the lower rules of ops."""
