"""Provisional: the training loop is written beside this branch."""
