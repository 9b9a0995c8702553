"""The command `gluongraph`: help, doctor, ops, exit codes."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gluongraph.cli import COMMANDS, Refused, doctor, main, ops
from gluongraph.ir.graph import OPS


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"gluongraph {command}" in capsys.readouterr().out.split("\n\n", 1)[1]


def test_it_is_a_module_too() -> None:
    done = subprocess.run([sys.executable, "-m", "gluongraph", "ops", "--json"], capture_output=True, text=True)
    assert done.returncode == 0 and {row["name"] for row in json.loads(done.stdout)} == set(OPS)


def test_a_locale_without_most_letters() -> None:
    """Python's own way out, UTF-8 in place of ASCII, is closed, as where a locale is set that is neither."""
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-m", "gluongraph", "ops"], capture_output=True, env=environ)
    assert done.returncode == 0 and b"matmul" in done.stdout and not done.stderr, done.stderr


def test_bad_usage_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ([], ["no-such-command"], ["ops", "--no-such-option"], ["bench", "--against", "tensorflow"]):
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == 2


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (Refused("no such file"), 2, "gluongraph ops: no such file\n"),
        (KeyboardInterrupt(), 130, "gluongraph ops: interrupted\n"),
        (OSError("disk is full"), 1, "gluongraph ops: OSError: disk is full\n"),
        (ValueError("no:\n  at a.py:1\n  help: yes"), 1, "gluongraph ops: ValueError: no; yes\n"),
    ],
)
def test_errors_are_one_line_and_a_code(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(options: object) -> int:
        raise error

    monkeypatch.delenv("GG_DEBUG", raising=False)
    monkeypatch.setattr(ops, "run", fail)
    assert main(["ops"]) == code and capsys.readouterr().err == said


def test_ops_by_kind_and_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--kind", "contraction", "conv", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    plain = ["conv2d", "conv2d_data_grad", "conv2d_weight_grad"]
    assert [row["name"] for row in rows] == sorted([*plain, *(f"{name}_blocks" for name in plain)])
    assert main(["ops", "softmax"]) == 0
    assert "its body" in capsys.readouterr().out
    assert main(["ops", "--kind", "what"]) == 2
    assert main(["ops", "no_such_op"]) == 2 and "has no_such_op in its name" in capsys.readouterr().err


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("GG_CACHE", str(tmp_path))
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    assert "apache-tvm" in told and f"{tmp_path}: 0 steps" in told and "target" in told
    assert "nothing yet: gluongraph tune" in told
    assert main(["doctor", "--json"]) == 0
    assert {"what", "found", "advice", "fatal"} == set(json.loads(capsys.readouterr().out)[0])


def test_doctor_says_that_a_cache_is_open_to_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("GG_CACHE", str(tmp_path))
    with pytest.warns(UserWarning, match="is open to others"):
        assert main(["doctor", "--json"]) == 0
    (row,) = [row for row in json.loads(capsys.readouterr().out) if row["what"] == "cache"]
    assert row["found"].startswith(f"not used: {tmp_path} is open to others") and "chmod go-w" in row["advice"]


def test_doctor_counts_while_others_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GG_CACHE", str(tmp_path))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "step.so").write_bytes(bytes(2**20))
    done = threading.Event()

    def compiles() -> None:
        while not done.is_set():
            draft = tmp_path / ".draft"
            draft.mkdir()
            (draft / "program.json").touch()
            shutil.rmtree(draft)

    other = threading.Thread(target=compiles)
    other.start()
    try:
        told = {doctor.cache()[0].found for _ in range(300)}
    finally:
        done.set()
        other.join()
    assert told == {f"{tmp_path}: 1 step, 1.0 MiB"}


def test_doctor_says_what_is_missing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(doctor, "version_of", lambda package: "")
    assert main(["doctor"]) == 1
    told = capsys.readouterr().out
    assert "pip install 'apache-tvm==" in told and "install gcc, clang or lld" in told


def test_every_command_is_a_module_of_its_own() -> None:
    for name in COMMANDS:
        module = importlib.import_module(f"gluongraph.cli.{name}")
        assert callable(module.run) and callable(module.arguments)
