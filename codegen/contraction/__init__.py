"""Matrix products, convolutions and attention: rules, tiling, packing and the loops of their kernels."""
