"""An artefact of this user's, and the same as a stranger would send it; keys that are each test's own."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable

import pytest
from attack import attacked, library, training

COMPILER = shutil.which("gcc") or shutil.which("cc")
Attack = Callable[[], tuple[pathlib.Path, pathlib.Path]]


@pytest.fixture(autouse=True)
def own_keys(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The folder of this test's keys; there are none yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "gluongraph"


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An artefact; no key that a test has signed it."""
    path = tmp_path_factory.mktemp("exported") / "step.gga"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(path.parent / "config"))
        training().export(path, modes=["step", "predict"])
    return path


@pytest.fixture
def attack(exported: pathlib.Path, tmp_path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """An artefact whose code writes a file once it is loaded, digests right, and that file."""
    if COMPILER is None:
        pytest.skip("there is no C compiler: install gcc")
    marker, path = tmp_path / "it-has-run", tmp_path / "stranger.gga"
    path.write_bytes(attacked(exported.read_bytes(), library(tmp_path, marker, COMPILER)))
    return path, marker
