"""Makes the helpers beside the tests importable from them; the tests themselves are run in importlib mode."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
