"""What is kept on disk from one process to the next: compiled code, plans, selected candidates, measured times."""
