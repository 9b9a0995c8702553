"""Training on several processes, on one host or more: `gluongraph run` starts them."""
