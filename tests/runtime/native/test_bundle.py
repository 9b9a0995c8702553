"""Bundles: folders that train where there is nothing but the system's libraries; the library for C; what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hostile import edited
from trainings import images, run

import gluongraph as mx
from gluongraph import cli
from gluongraph.artefact import bundle
from gluongraph.runtime import checkpoint
from gluongraph.runtime.checkpoint import load


def test_a_bundle_trains_in_an_empty_environment(
    artefact: pathlib.Path, runner: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bundle", str(artefact), "-o", str(tmp_path / "made"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    made = tmp_path / "made"
    names = sorted(
        str(path.relative_to(made)) for path in made.rglob("*") if path.is_file() and "licenses" not in str(path)
    )
    assert names == ["gg-run", "lib/libtvm_ffi.so", "lib/libtvm_runtime.so", "step.gga"]
    assert told["bytes"] < 12e6 and not any(path.is_symlink() for path in made.rglob("*"))
    assert (made / "licenses" / "apache-tvm-LICENSE").exists()

    linked = subprocess.run(["ldd", made / "gg-run"], capture_output=True, text=True, check=True).stdout
    assert "site-packages" not in linked and "not found" not in linked
    line = f"cd {made} && ./gg-run step.gga --data ../data.safetensors --steps 3 --drop-last --save run"
    shutil.copy(artefact.with_name("data.safetensors"), tmp_path)
    done = subprocess.run(["env", "-i", "/bin/sh", "-c", line], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert load(made / "run").step == 4


def test_a_bundle_is_refused(
    artefact: pathlib.Path, runner: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes").touch()
    (tmp_path / "text").write_text("no artefact")
    for given, folder, said in (
        (artefact, "full", "is not empty"),
        (tmp_path / "text", "new", "text is no artefact, or a damaged one"),
        (tmp_path / "none", "new", "there is no such file"),
    ):
        assert cli.main(["bundle", str(given), "-o", str(tmp_path / folder)]) == 2
        assert said in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "text"]


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("GG_CACHE", str(tmp_path))
    with pytest.raises(mx.MXNetError, match=r"(?s)no C\+\+ compiler no-such-compiler.*install g\+\+"):
        bundle.built()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler: install gcc")
def test_a_program_in_c(artefact: pathlib.Path, runner: pathlib.Path, tmp_path: pathlib.Path) -> None:
    strict = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{bundle.NATIVE}"]
    library = [f"-L{runner}/lib", "-lgluongraph", f"-Wl,-rpath,{runner}/lib"]
    subprocess.run(["gcc", *strict, bundle.NATIVE / "example.c", *library, "-o", tmp_path / "example"], check=True)
    line = [tmp_path / "example", artefact, "3", tmp_path / "run"]
    done = subprocess.run(line, capture_output=True, text=True, env={})
    assert done.returncode == 0 and done.stdout.startswith("4 updates, loss "), done.stderr
    assert load(tmp_path / "run").step == 4
    done = subprocess.run([line[0], tmp_path / "none", "3", "x"], capture_output=True, text=True, env={})
    assert done.returncode == 2 and "No such file" in done.stderr


def _cut(data: bytes) -> bytes:
    return data[:-1000]


def _flipped(data: bytes) -> bytes:
    at = len(data) * 3 // 4
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _longer(data: bytes) -> bytes:
    return (2**62).to_bytes(8, "little") + data[8:]


def _deep(data: bytes) -> bytes:
    return (200).to_bytes(8, "little") + b"[" * 200


def _other_processor(data: bytes) -> bytes:
    return edited(data, lambda told: told["target"].update(needs=["avx9000"], name="future"))


def _other_version(data: bytes) -> bytes:
    return edited(data, lambda told: told["writer"].update(tvm="0.1.0"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_cut, "is not a safetensors file"),
        (_flipped, "has changed"),
        (_longer, "header is longer"),
        (_deep, "is nested too deeply"),
        (_other_processor, "this processor lacks avx9000"),
        (_other_version, "is compiled with tvm 0.1.0"),
        (lambda data: b"", "has 0 bytes"),
    ],
)
def test_what_is_no_sound_artefact_is_refused(
    change: Callable[[bytes], bytes], said: str, artefact: pathlib.Path, runner: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "bad.gga").write_bytes(change(artefact.read_bytes()))
    data = artefact.with_name("data.safetensors")
    done = run(runner, tmp_path / "bad.gga", "--data", data, "--steps", 1, "--save", tmp_path / "run")
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bad.gga"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "DATA", "--steps", "1"], "has 37 samples: a batch of 5 is left after those of 32; export with"),
        (["--data", "LABELS", "--steps", "1"], "labels.npy: 1 file for 2 arrays of a batch"),
        (["--data", "LABELS,LABELS", "--steps", "1"], "is i32[37]; the artefact takes batches f32[32,1,8,8]"),
        (["--data", "DATA"], "training wants --data, and --steps or --passes"),
        (["--steps", "many"], "--steps takes a number, not 'many'"),
        (["--data", "none.npy,none.npy", "--steps", "1"], "none.npy: No such file"),
        (["--evaluate", "DATA"], "no entry 'evaluate'"),
        (["--load", "."], "there is no checkpoint in ."),
        (["--predict", "DATA"], "--predict wants an --output"),
        (["--predict", "DATA", "--output", "out.txt"], "a file that ends in .npy or .safetensors"),
        (["--no-such-option"], "there is no --no-such-option"),
    ],
)
def test_what_cannot_be_done_is_refused(
    words: list[str], said: str, artefact: pathlib.Path, runner: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    np.save(tmp_path / "labels.npy", images()[1])
    data = str(artefact.with_name("data.safetensors"))
    given = [word.replace("DATA", data).replace("LABELS", str(tmp_path / "labels.npy")) for word in words]
    done = run(runner, artefact, *given, "--save", tmp_path / "run")
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_that_does_not_fit_changes_nothing(
    artefact: pathlib.Path, runner: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    data = artefact.with_name("data.safetensors")
    train = ["--data", data, "--steps", 1, "--drop-last", "--save", tmp_path / "run"]
    for _ in range(2):
        assert run(runner, artefact, *train).returncode == 0
    newest = tmp_path / "run/step-00000002-v1/params-00000-of-00001.safetensors"
    newest.write_bytes(newest.read_bytes()[:-4])
    done = run(runner, artefact, "--load", tmp_path / "run", *train)
    assert done.returncode == 0 and "is damaged: params" in done.stderr and "step-00000002 is loaded" in done.stderr
    done = run(runner, artefact, "--load", newest.parent, *train)
    assert done.returncode == 2 and "is damaged" in done.stderr
    assert os.readlink(tmp_path / "run/last") == "step-00000003"


@pytest.mark.parametrize("name", ["../../secret", "/secret", "..", "a link"])
def test_a_checkpoint_that_names_files_elsewhere_is_refused(
    name: str, artefact: pathlib.Path, runner: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    train = ["--data", artefact.with_name("data.safetensors"), "--steps", "1", "--drop-last"]
    assert run(runner, artefact, *train, "--save", tmp_path / "run").returncode == 0
    place, secret = (tmp_path / "run" / "last").resolve(), tmp_path / "secret"
    secret.write_bytes(b"what no checkpoint may name")
    (place / "a link").symlink_to(secret)
    name = str(secret) if name == "/secret" else name
    told = json.loads((place / "MANIFEST.json").read_text())
    told["files"][name] = {"bytes": 27, "sha256": hashlib.sha256(secret.read_bytes()).hexdigest()}
    (place / "MANIFEST.json").write_text(json.dumps({**told, "sha256": checkpoint._digest(told)}))
    done = run(runner, artefact, "--load", place, *train)
    assert done.returncode == 2 and "is damaged: " in done.stderr
    assert ("no file but a link" if name == "a link" else f"names {name}, no file in it") in done.stderr


def test_cmake_builds_it_too(tmp_path: pathlib.Path) -> None:
    """Configured only: what it compiles is what `deploy` does."""
    if shutil.which("cmake") is None:
        pytest.skip("there is no cmake: install it")
    given = [f"-DPYTHON={sys.executable}", "-S", bundle.NATIVE, "-B", tmp_path]
    done = subprocess.run(["cmake", *given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    listed = (bundle.NATIVE / "CMakeLists.txt").read_text()
    assert all(path.name in listed for path in bundle.NATIVE.glob("*.cc"))
