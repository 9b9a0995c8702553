"""gg-run --key: nothing of an artefact is loaded that none of the keys has signed."""

from __future__ import annotations

import ctypes
import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
from attack import X, Y, resigned, training

from gluongraph import cli
from gluongraph.artefact import bundle, file, keys

OTHER = "ed25519:" + "1f" * 32


@pytest.fixture(scope="module")
def runner() -> pathlib.Path:
    """The folder with gg-run and lib/."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("there is no C++ compiler: install g++")
    return bundle.built()


@pytest.fixture
def signed(tmp_path: pathlib.Path) -> pathlib.Path:
    """An artefact that this user has signed; the public key is in me.pub, the data in x.npy and y.npy."""
    pytest.importorskip("cryptography")
    made = keys.make("me")
    (tmp_path / "me.pub").write_text(f"# those who may\n\n{OTHER} somebody\r\n  {made.line}\t# and I\n")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    training().export(tmp_path / "signed.gga", modes=["step"])
    return tmp_path / "signed.gga"


def run(runner: pathlib.Path, path: pathlib.Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Train a step."""
    files = f"{path.parent}/x.npy,{path.parent}/y.npy"
    line = [runner / "gg-run", path, "--data", files, "--steps", 1, *words]
    return subprocess.run([str(word) for word in line], capture_output=True, text=True, env={})


def test_what_a_key_has_signed_runs(signed: pathlib.Path, runner: pathlib.Path) -> None:
    assert run(runner, signed, "--key", signed.with_name("me.pub")).returncode == 0
    assert run(runner, signed).returncode == 0


def test_the_attack(attack: tuple[pathlib.Path, pathlib.Path], signed: pathlib.Path, runner: pathlib.Path) -> None:
    """Without signatures; with those of an artefact that was signed; and it would run without --key."""
    (path, marker), key = attack, signed.with_name("me.pub")
    resigned(path, {})
    done = run(runner, path, "--key", key)
    assert done.returncode == 2 and "stranger.gga cannot be loaded: nobody has signed it" in done.stderr
    vouched = file.read(signed).metadata
    resigned(path, {name: vouched[name] for name in ("made_here", "ed25519")})
    done = run(runner, path, "--key", key)
    assert done.returncode == 2 and done.stderr.endswith("is not of this file\n") and not done.stdout
    resigned(path, {"ed25519": OTHER.removeprefix("ed25519:") + " " + "00" * 64})
    assert "the signature by ed25519:1f1f" in run(runner, path, "--key", key).stderr
    assert not marker.exists()
    run(runner, path)
    assert marker.exists()


def test_a_bundle_of_what_is_signed(signed: pathlib.Path, runner: pathlib.Path) -> None:
    folder = signed.with_name("folder")
    assert cli.main(["bundle", str(signed), "-o", str(folder)]) == 0
    assert run(folder, signed, "--key", signed.with_name("me.pub")).returncode == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{OTHER}\n", ", a key that is not trusted here"),
        ("", "keys holds no public key"),
        ("# none\n", "keys holds no public key"),
        (f"{OTHER}\n{OTHER.upper()}\n", "line 2 of "),
        (f"{OTHER}0\n", "line 1 of "),
        (f"{OTHER[:-1]}\n", "line 1 of "),
        ("ed25519-private:" + "00" * 32, "line 1 of "),
        (None, "No such file"),
    ],
)
def test_files_of_keys(text: str | None, said: str, signed: pathlib.Path, runner: pathlib.Path) -> None:
    if text is not None:
        signed.with_name("keys").write_text(text)
    done = run(runner, signed, "--key", signed.with_name("keys"))
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_key_that_is_empty_is_no_leave(signed: pathlib.Path, runner: pathlib.Path) -> None:
    assert run(runner, signed, "--key", "").returncode == 2
    assert run(runner, signed, "--key").returncode == 2


@pytest.mark.parametrize(
    "text", ["", " ", "ff", "KEY", "KEY  SIGNATURE", "KEY SIGNATURE ", "KEY SIGNATURE00", "signature", "key SIGNATURE"]
)
def test_signatures_that_are_none(text: str, signed: pathlib.Path, runner: pathlib.Path) -> None:
    """The same in Python and in the runner: bad signatures are no other ones."""
    key, signature = file.read(signed).metadata["ed25519"].split(" ")
    text = text.replace("KEY", key).replace("SIGNATURE", signature).replace("key", key.upper())
    resigned(signed, {"ed25519": text})
    done = run(runner, signed, "--key", signed.with_name("me.pub"))
    assert done.returncode == 2 and "its signature is damaged" in done.stderr
    from gluongraph.artefact import signing

    assert signing.judge(file.read(signed), "keys").why == "its signature is damaged"


def test_the_library(signed: pathlib.Path, runner: pathlib.Path) -> None:
    """gg_load_signed, for programs in C."""
    library = ctypes.CDLL(str(runner / "lib" / bundle.LIBRARY))
    library.gg_load_signed.restype = ctypes.c_void_p
    library.gg_error.restype = ctypes.c_char_p
    library.gg_free.argtypes = library.gg_error.argtypes = [ctypes.c_void_p]
    path, key = str(signed).encode(), str(signed.with_name("me.pub")).encode()
    found = library.gg_load_signed(path, key)
    assert found
    library.gg_free(found)
    signed.with_name("other.pub").write_text(OTHER)
    assert not library.gg_load_signed(path, str(signed.with_name("other.pub")).encode())
    assert b"not trusted here" in library.gg_error(None)
