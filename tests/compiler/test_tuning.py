"""Tuning a step: what it finds is kept and taken, and changes no bit of what is trained."""

from __future__ import annotations

import pathlib
import re
import warnings
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import gluon
from gluongraph.cli import main
from gluongraph.codegen.cache.measurements import Measurement, table
from gluongraph.codegen.cache.selections import key_of
from gluongraph.codegen.rules import offer, tuning_variants
from gluongraph.codegen.targets import target
from gluongraph.compiler.candidate_timing import Contest
from gluongraph.compiler.tuning import Tuning, seconds_of
from gluongraph.ir.plan import Launch
from gluongraph.step import TrainStep

pytestmark = pytest.mark.usefixtures("own_cache")
DRAW = np.random.default_rng(0)
X, Y = DRAW.standard_normal((32, 48), np.float32), DRAW.integers(0, 5, 32).astype(np.int32)


def made(**how: Any) -> TrainStep:
    """A step with one layer and its update, with the same numbers each time."""
    mx.random.seed(3)
    net = gluon.nn.Dense(5, in_units=48)
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    return mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, **how)


def other_way(step: TrainStep) -> Launch:
    """Put another way to write a product of the step into the table, as if it had been measured to be faster."""
    step.memory(X, Y)  # compiles it
    for launch in step.plan.launches:
        usual = offer(target())(launch.group)
        if usual is not None and (others := tuning_variants(launch.group, usual, target())):
            table(target()).put({key_of(launch.group): Measurement(others[0], 1e-6, 2e-6)})
            return launch
    raise AssertionError("no kernel of the step has a setting")


def test_a_tuned_step_trains_as_any_other() -> None:
    tuned, plain = made(tune=1), made()
    losses = [[step(X, Y).asnumpy() for _ in range(3)] for step in (tuned, plain)]
    assert np.array_equal(*losses)
    found = table(target())
    assert len(found) > 0
    again = tuned.tune(X, Y, seconds=600)
    assert again.left == 0 and again.known + len(again) >= len(found)
    more = made().tune(X, Y)
    assert len(more) == 0 and more.known == again.known + len(again), "nothing is measured twice"
    assert re.search(rf"0 kernels measured in .* {more.known} known before", str(more))
    assert set(again.data()) == {"known", "left", "spent", "saved", "kernels"}


def test_what_was_found_is_compiled_and_exported(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = other_way(made())
    step, path = made(), tmp_path / "step.gga"
    first = step(X, Y).asnumpy()
    assert [each.candidate.setting for each in step.plan.launches if each.label == launch.label] != [""]
    step.export(path, modes=["step"])
    loaded, expected = mx.load(path), step(X, Y).asnumpy()
    assert np.array_equal(loaded(X, Y).asnumpy(), expected)
    monkeypatch.setenv("GG_TUNED", "0")
    plain = made()
    assert np.array_equal(plain(X, Y).asnumpy(), first)
    assert not any(each.candidate.setting for each in plain.plan.launches)
    monkeypatch.setenv("GG_TARGET", "x86-64-v3")  # where the code of the file may not run as it is
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        anew = mx.load(path)
        np.testing.assert_allclose(anew(X, Y).asnumpy(), expected, rtol=1e-5)


def test_a_contest_of_one_kernel() -> None:
    """Everybody computes the same, in-place updates included, whoever is the fastest."""
    launch = other_way(made())
    usual = offer(target())(launch.group)
    assert usual is not None
    first, best = Contest(launch, target()).run((usual, *tuning_variants(launch.group, usual, target())[:2]))
    assert first.candidate == usual and best.seconds <= first.seconds and best.exact


@pytest.mark.parametrize("wrong", [0, -1, float("inf"), float("nan"), "long"])
def test_no_number_of_seconds(wrong: Any) -> None:
    with pytest.raises(ValueError, match="number of seconds"):
        made(tune=wrong)
    with pytest.raises(ValueError, match="number of seconds"):
        made().tune(X, Y, seconds=wrong)


def test_tuning_is_off_by_default() -> None:
    assert seconds_of(False) == seconds_of(None) == 0 < seconds_of(True)


def test_an_empty_tuning_prints() -> None:
    assert str(Tuning(left=2)).splitlines()[-1] == "2 are left: there was no more time for them"


@pytest.mark.parametrize("line", ["tune nothing.py", "tune mlp-8 --seconds 0", "tune update"])
def test_what_cannot_be_tuned_is_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
