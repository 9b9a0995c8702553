"""Every example in the help of a command runs, one after the other, in a folder with the files that they name."""

from __future__ import annotations

import importlib
import json
import pathlib
import re
import runpy
import shlex
import shutil

import pytest

from gluongraph import debug
from gluongraph.cli import COMMANDS, main

pytestmark = pytest.mark.usefixtures("demo_environment")

# Commands whose examples take minutes: how many of the last ones are run. That of bundle needs a C++ compiler, and runs
# in the tests of the runner; those of key need the package cryptography, and run in tests/trust; those of run need MPI,
# and run in tests/distributed; those of fit need jsonargparse, and run in test_fit.py.
LONG = {"bench": 1, "bundle": 0, "fit": 0, "key": 0, "run": 0, "tune": 1}


def examples(command: str) -> list[str]:
    """The lines of a docstring that are commands, without comments and without what the shell would do."""
    text = importlib.import_module(f"gluongraph.cli.{command}").__doc__ or ""
    lines = [line.strip() for line in text.splitlines() if line.startswith(f"  gluongraph {command}")]
    return [re.split(r"\s+[#>]\s", line)[0] for line in lines]


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_run(
    command: str,
    made: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "work"
    shutil.copytree(made, folder, ignore=shutil.ignore_patterns("*.run", "__pycache__"))
    monkeypatch.chdir(folder)
    if command == "tune":  # what it measures would change the kernels of other tests that run meanwhile
        monkeypatch.setenv("GG_CACHE", str(tmp_path / "cache"))
    if command in ("diff", "replay"):
        with debug.override(dump=str(folder / "dump")):
            assert main(["compile", "train.py"]) == 0
    if command in ("inspect", "train"):
        assert main(["compile", "train.py", "-o", "step.gga"]) == 0
    found = examples(command)
    assert found, f"gluongraph {command} --help shows no example"
    for line in found[len(found) - LONG.get(command, len(found)) :]:
        capsys.readouterr()
        code = main(shlex.split(line)[1:])
        said = capsys.readouterr()
        assert code == 0 or (command == "diff" and code == 1 and not said.err), f"{line}: {code}\n{said.err}"
        wanted = [word for flag, word in zip(shlex.split(line), shlex.split(line)[1:], strict=False) if flag in WRITING]
        assert all((folder / name).exists() for name in wanted), line


def test_the_first_example_of_the_docs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/cli.md begins with a script, and with commands that work on it."""
    text = (pathlib.Path(__file__).parent.parent.parent / "docs" / "cli.md").read_text()
    monkeypatch.chdir(tmp_path)
    script, rest = text.split("```python")[1].split("```", 1)
    pathlib.Path("train.py").write_text(script)
    lines = rest.split("\n## ")[0].splitlines()
    first, *commands = [line.split("#")[0].strip() for line in lines if line.startswith("    ")]
    assert first == "python train.py"
    runpy.run_path("train.py", run_name="__main__")
    commands = [line for line in commands if line.startswith("gluongraph")]
    assert len(commands) == 4
    for line in commands:
        assert main(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    history = json.loads(pathlib.Path("train.run/last/trainer.json").read_text())["extra"]["past"]["history"]
    assert history[-1]["loss"] < history[0]["loss"] / 2
    assert pathlib.Path("step.html").exists() and pathlib.Path("step.gga").exists()


WRITING = ("--html", "--svg", "-o", "--save")
