"""Precisions of a compiled step: which there are, the scale of a loss, what is pinned to float32."""
