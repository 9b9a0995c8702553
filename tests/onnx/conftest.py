"""Without the package onnx there are no models to read: `make test` installs it."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("onnx") else ["test_*.py"]
