"""The loops of a Trainer: over epochs and batches of a training, and over those of evaluations and predictions."""
