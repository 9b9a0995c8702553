"""Without the package onnx there are no models to read: `make test` installs it."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("onnx") else ["test_onnx.py"]
