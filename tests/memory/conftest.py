"""Makes `nets` importable from the tests beside it; the tests themselves are run in importlib mode."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
