"""Gradients by rows: what they are, arrays that note which rows are touched, updates of those rows alone."""
