"""The runner given files that are not what was written: for the tests, and for benchmarks/fuzz_runner.py."""

from __future__ import annotations

import pathlib
import random
import shutil

import numpy as np
from hostile import DAMAGE
from trainings import images, run, scaled

from gluongraph.runtime import tensorfile

SECONDS = 200  # until a run counts as one that hangs


def attempt(runner: pathlib.Path, folder: pathlib.Path, data: bytes, step: bool, **environment: str) -> int:
    """Give the runner a file, to train with or to look at: the exit code, once it has been found to be sound."""
    bad = folder / "bad.gga"
    bad.write_bytes(data)
    wanted = [
        "--data",
        folder / "data.safetensors",
        "--steps",
        1,
        "--drop-last",
        "--log",
        folder / "log",
        "--save",
        folder / "run",
    ]
    done = run(runner, bad, *(wanted if step else []), timeout=SECONDS, **environment)
    assert done.returncode in (0, 2), done.stderr
    if done.returncode == 2:
        said = [line for line in done.stderr.splitlines() if "AddressSanitizer failed to allocate" not in line]
        assert len(said) == 1 and said[0].startswith("gg-run: "), done.stderr
        assert not done.stdout and sorted(path.name for path in folder.iterdir()) == ["bad.gga", "data.safetensors"]
    else:
        (folder / "log").unlink(missing_ok=True)
        shutil.rmtree(folder / "run", ignore_errors=True)
    return done.returncode


def damaged(runner: pathlib.Path, folder: pathlib.Path, data: bytes, kind: str, chance: random.Random) -> None:
    """Damage a file; it is refused, unless it still says the same, in JSON with other spaces."""
    made = DAMAGE[kind](data, chance)
    if attempt(runner, folder, made, step=True) == 0:
        assert digest_of(made) == digest_of(data)


def digest_of(data: bytes) -> str:
    return tensorfile.parse_all(np.frombuffer(data, np.uint8), "")[1]["sha256"]


def whole(folder: pathlib.Path) -> bytes:
    """An artefact; the data for it comes into the folder."""
    x, y = images()
    step = scaled()
    step(x[:32], y[:32])
    step.export(folder / "bad.gga", modes=["step"])
    pieces = tensorfile.pieces({"x": x, "y": y})
    (folder / "data.safetensors").write_bytes(b"".join(piece.tobytes() for piece in pieces))
    return (folder / "bad.gga").read_bytes()
