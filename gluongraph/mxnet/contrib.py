"""`mxnet.contrib`: amp, io, nd, text; each is looked up by its own name."""
