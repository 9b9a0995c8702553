"""The runner, compiled once and kept in the cache; where there is no C++ compiler its tests are skipped."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys

import pytest

from gluongraph import deploy

sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture(scope="session")
def runner() -> pathlib.Path:
    """The folder with gg-run and lib/."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("there is no C++ compiler: install g++")
    return deploy.built()
