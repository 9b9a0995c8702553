"""Training steps as files: what `step.export` writes and `mx.load` reads. docs/artefact.md describes the format."""

from gluongraph.artefact.load import ExportedStep, load

__all__ = ["ExportedStep", "load"]
