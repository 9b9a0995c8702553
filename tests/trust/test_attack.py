"""The code of a stranger's artefact is not run: not by `mx.load`, not by any command; its graph still works."""

from __future__ import annotations

import json
import pathlib
import warnings

import numpy as np
import pytest
from attack import X, Y, resigned, training

import gluongraph as mx
from gluongraph import cli
from gluongraph.artefact import bundle, code

COMMANDS = {  # command -> what it is given, in place of STRANGER an artefact; its exit code
    "inspect": (["STRANGER", "--repeat", "1"], 0),
    "diff": (["STRANGER", "STRANGER"], 0),
    "replay": (["STRANGER"], 0),
    "compile": (["STRANGER", "--batch-sizes", "4"], 0),
    "train": (["STRANGER", "data.npz", "--batch-size", "4", "--steps", "2", "--no-shuffle"], 0),
    "simulate": (["STRANGER", "--ranks", "2", "--bandwidth", "1Gbit", "--latency", "1e-5"], 0),
    "tune": (["STRANGER", "--seconds", "1"], 2),
    "bundle": (["STRANGER", "-o", "folder"], 2),
}
WITHOUT = {
    "bench",
    "completion",
    "doctor",
    "fit",
    "key",
    "ops",
    "run",
}  # commands that take no artefact, or never load one


def test_loaded_it_is_compiled_from_its_graph(
    attack: tuple[pathlib.Path, pathlib.Path], exported: pathlib.Path
) -> None:
    path, marker = attack
    with pytest.warns(
        UserWarning, match="nobody has signed it; its code is not run, and what is called will be compil"
    ):
        step = mx.load(path)
    losses = [step(X, Y).asnumpy().tolist() for _ in range(3)]
    step.predict(X)
    step.profile(X, Y, repeat=1)
    assert not marker.exists()
    own = mx.load(exported, trust="file")
    assert losses == [own(X, Y).asnumpy().tolist() for _ in range(3)]


def test_that_it_would_run(attack: tuple[pathlib.Path, pathlib.Path]) -> None:
    """The attack itself: where the file is trusted, its constructor runs."""
    path, marker = attack
    step = mx.load(path, trust="file")
    assert not marker.exists()
    with pytest.raises(AttributeError, match="no function"):
        step(X, Y)
    assert marker.exists()


def test_own_artefacts_that_somebody_has_changed(attack: tuple[pathlib.Path, pathlib.Path]) -> None:
    """Signed here, then given other code: the tag and the signature of what it was do not vouch for it."""
    path, marker = attack
    pytest.importorskip("cryptography")
    assert cli.main(["key", "make"]) == 0
    training().export(own := path.with_name("own.gga"), modes=["step"])
    vouched = json.loads(own.read_bytes()[8 : 8 + int.from_bytes(own.read_bytes()[:8], "little")])["__metadata__"]
    resigned(path, {key: vouched[key] for key in ("made_here", "ed25519")})
    with pytest.warns(UserWarning, match="the signature by ed25519:.* is not of this file; its code is not run"):
        step = mx.load(path)
    step(X, Y)
    assert not marker.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(
    command: str,
    attack: tuple[pathlib.Path, pathlib.Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, marker = attack
    monkeypatch.chdir(path.parent)
    np.savez("data.npz", x=X, y=Y)
    words, expected = COMMANDS[command]
    said = cli.main([command, *(str(path) if word == "STRANGER" else word for word in words)])
    error = capsys.readouterr().err
    assert said == expected and not marker.exists(), error
    assert "nobody has signed it" in error and "Traceback" not in error


@pytest.mark.parametrize(
    "words",
    [["--no-times"], ["--plan"], ["--graph", "traced"], ["--json", "--no-times"], ["--no-times", "--html", "a"]],
)
def test_ways_to_inspect(
    words: list[str],
    attack: tuple[pathlib.Path, pathlib.Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, marker = attack
    monkeypatch.chdir(path.parent)
    assert cli.main(["inspect", str(path), *words]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "UserWarning" not in line]
    assert len(said) == 1 and said[0].startswith("gluongraph inspect: ") and not marker.exists()


def test_every_command_is_here() -> None:
    assert {*COMMANDS, *WITHOUT} == {*cli.COMMANDS}
    assert not {*COMMANDS} & WITHOUT


def test_what_is_not_trusted_is_not_bundled(attack: tuple[pathlib.Path, pathlib.Path]) -> None:
    path, _ = attack
    with pytest.raises(mx.MXNetError, match=r"stranger.gga is not bundled: .* nobody has signed it(?s:.*)trust='file'"):
        bundle.bundle(path, path.parent / "folder")
    assert not (path.parent / "folder").exists()


@pytest.mark.parametrize("trust", ["none", "keys"])
def test_without_a_compiler_the_error_says_the_way_out(
    trust: str, attack: tuple[pathlib.Path, pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of TVM but its runtime, as where only that is installed."""

    def missing(*args: object, **how: object) -> None:
        raise mx.errors.CompileError("there is no compiler")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = mx.load(attack[0], trust=trust)
    monkeypatch.setattr("gluongraph.compiler.lower.lower", missing)
    with pytest.raises(mx.MXNetError, match=r"cannot be compiled again here: there is no compiler(?s:.*)trust='file'"):
        step(X, Y)
    assert not attack[1].exists()


def test_code_is_loaded_in_one_place(
    attack: tuple[pathlib.Path, pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may ask for the code of an artefact that is not trusted."""
    monkeypatch.setattr(code, "module_of", lambda *args: pytest.fail("code has been asked for"))
    step = mx.load(attack[0], trust="none")  # without a warning: it was asked for
    step(X, Y)
    step.export(attack[0].with_name("again.gga"))
    with pytest.warns(UserWarning, match="nobody has signed it"):  # nor does an export vouch for a stranger's code
        mx.load(attack[0].with_name("again.gga"))(X, Y)
