"""The GG_* variables end to end: what they write, print, leave out and refuse, in processes of their own."""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import subprocess
import sys

import pytest

from gluongraph import debug
from gluongraph.errors import MXNetError
from gluongraph.ir.printer import read, show
from gluongraph.passes import PIPELINE, Context

PROGRAM = """
import numpy as np
import gluongraph as mx
from gluongraph import gluon, nd
mx.random.seed(3)
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(8, activation="relu", in_units=6), gluon.nn.LayerNorm(in_channels=8))
net.add(gluon.nn.Dense(3, in_units=8))
net.initialize(mx.init.Xavier())
step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), gluon.Trainer(net.collect_params(), "adam"))
x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
for _ in range(2):
    loss = step(x, np.arange(4, dtype=np.int32) % 3)
print("loss", *loss.asnumpy())
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One cache for all processes here: a variable that does not change the code compiles nothing."""
    return str(tmp_path_factory.mktemp("cache"))


def launched(cache: str, program: str = PROGRAM, typed: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """The program in a process with these variables and no others of ours."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GG_")}
    environment = {**clean, "GG_CACHE": cache, **variables}
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, input=typed, env=environment, capture_output=True, text=True)


def losses(done: subprocess.CompletedProcess[str]) -> list[float]:
    assert done.returncode == 0, done.stderr
    (line,) = [text for text in done.stdout.splitlines() if "loss" in text]
    return [float(number) for number in line.split("loss")[1].split()]


@pytest.fixture(scope="module")
def plain(cache: str) -> list[float]:
    """The losses without any variable; nothing is printed besides."""
    done = launched(cache)
    assert done.stderr == "" and done.stdout.count("\n") == 1
    return losses(done)


def test_dump_writes_each_stage(cache: str, plain: list[float], tmp_path: pathlib.Path) -> None:
    for folder in ("first", "second"):  # the second time the code comes from the cache, and is written all the same
        assert losses(launched(cache, GG_DUMP=str(tmp_path / folder))) == plain
        written = {file.name: file.read_text() for file in (tmp_path / folder).iterdir()}
        names = [each.name for each in PIPELINE]
        graphs = sorted(name for name in written if name.endswith(".py"))
        assert graphs[0] == "00_traced.py" and graphs[-1] == f"{len(names) - 1:02d}_fuse.py"
        assert set(graphs[1:]) <= {f"{i:02d}_{name}.py" for i, name in enumerate(names)}
        assert written["00_traced.py"] != written[graphs[-1]]
        for name in graphs:
            graph = read(written[name])
            assert read(show(graph)) == graph
            assert strip(show(graph)) == strip(written[name])
        code = {name.removesuffix(".txt") for name in written if name.endswith(".txt")} - {"plan"}
        assert code and code <= set(re.findall(r"\w+", written["plan.txt"]))
        assert all("prim_func" in written[f"{name}.txt"] for name in code)
        assert "dense0" in written["00_traced.py"]  # the layers that the nodes come from


def strip(text: str) -> str:
    """A dump without comments (origins are not read back) and without its title."""
    lines = [line.split("  #")[0].rstrip() for line in text.splitlines() if not line.startswith("#")]
    return re.sub(r"def \w+\(", "def f(", "\n".join(lines).strip())


def test_each_graph_of_a_process_gets_a_folder(cache: str, tmp_path: pathlib.Path) -> None:
    assert launched(cache, PROGRAM + "step.predict(x)", GG_DUMP=str(tmp_path)).returncode == 0
    assert (tmp_path / "graph2" / "plan.txt").read_text() != (tmp_path / "plan.txt").read_text()
    assert not (tmp_path / "graph3").exists()


@pytest.mark.parametrize("name", [each.name for each in PIPELINE if not each.required])
def test_passes_can_be_left_out(cache: str, plain: list[float], tmp_path: pathlib.Path, name: str) -> None:
    found = losses(launched(cache, GG_SKIP=name, GG_DUMP=str(tmp_path), GG_VERIFY="1"))
    assert found == pytest.approx(plain, rel=1e-4)
    assert not list(tmp_path.glob(f"*_{name}.py"))


def test_stop_runs_only_what_code_needs(cache: str, plain: list[float], tmp_path: pathlib.Path) -> None:
    found = losses(launched(cache, GG_STOP="shapes", GG_DUMP=str(tmp_path), GG_VERIFY="1"))
    assert found == pytest.approx(plain, rel=1e-4)
    left = {file.stem.split("_", 1)[1] for file in tmp_path.glob("*.py")}
    assert left == {"traced", "inline", "fuse"}


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("GG_SKIP", "fuse", "GG_SKIP=fuse: there is no code without this pass"),
        ("GG_SKIP", "cse,fussion", "GG_SKIP=fussion: no pass has that name; there are amp, shapes, distribute"),
        ("GG_STOP", "fussion", "GG_STOP=fussion: no pass has that name"),
        ("GG_DEBUG", "9", "GG_DEBUG=9: a number from 0 to 5"),
        ("GG_BACKEND", "foo", "GG_BACKEND=foo: reference, or nothing"),
        ("GG_THREADS", "two", "GG_THREADS=two: a number from 1 on"),
        ("GG_DUMP", "/proc/nowhere", "GG_DUMP=/proc/nowhere: /proc/nowhere/"),
        ("GG_EDIT", "/proc/nowhere", "GG_EDIT=/proc/nowhere: the file cannot be written"),
        ("GG_CHECK", "inf", "GG_CHECK=inf: nan, or nothing"),
        ("GG_TARGET", "x86-64-v9", "unknown target 'x86-64-v9'; there are cpu, "),
    ],
)
def test_values_that_are_refused(cache: str, variable: str, value: str, message: str) -> None:
    done = launched(cache, **{variable: value})
    assert done.returncode != 0 and f"Error: {message}" in done.stderr.splitlines()[-1], done.stderr


def test_stop_and_skip_are_refused_before_anything_is_compiled() -> None:
    from gluongraph.compiler.run_passes import left_out

    with debug.override(skip=frozenset({"cse"}), stop="fold"):
        assert left_out() == {"bucket", "cse", "layout", "remat", "simplify", "sink_reshapes"}
    with debug.override(stop="fuse"):
        assert left_out() == set()
    with debug.override(skip=frozenset({"prune"})):  # its name in former versions
        assert left_out() == {"scan_dce"}
    with debug.override(skip=frozenset({"inline"})), pytest.raises(MXNetError, match="GG_SKIP=inline"):
        left_out()


def test_edit_goes_on_with_what_the_file_says(cache: str, tmp_path: pathlib.Path) -> None:
    """Enter at once changes nothing; an edit counts: here the loss is negated by a program that types for us."""
    file = tmp_path / "graph.py"
    program = "import gluongraph as mx\nfrom gluongraph import nd\nHOOK\n" + (
        "print('loss', *mx.compile(lambda x: nd.exp(x)).predict(nd.array([0.0, 1.0])).asnumpy())"
    )
    done = launched(cache, program.replace("HOOK", ""), typed="\n", GG_EDIT=str(file))
    assert "edit it, then press Enter" in done.stdout
    assert losses(done) == pytest.approx([1.0, 2.718282])
    assert "exp(" in file.read_text()
    hook = (
        "import builtins, pathlib\n"
        f"path = pathlib.Path({str(file)!r})\n"
        "builtins.input = lambda text: path.write_text(path.read_text().replace('exp(', 'tanh('))"
    )
    assert losses(launched(cache, program.replace("HOOK", hook), GG_EDIT=str(file))) == pytest.approx([0.0, 0.7615942])
    hook = hook.replace("'tanh('", "'no_such_op('")
    done = launched(cache, program.replace("HOOK", hook), GG_EDIT=str(file))
    assert done.returncode != 0 and "FormatError" in done.stderr and "no_such_op" in done.stderr


def test_reference_backend(plain: list[float], tmp_path: pathlib.Path) -> None:
    """The same numbers, and no code: the cache stays empty."""
    assert losses(launched(str(tmp_path), GG_BACKEND="reference")) == pytest.approx(plain, rel=1e-4)
    assert not list(tmp_path.rglob("*.so"))


def test_check_nan(cache: str, plain: list[float]) -> None:
    assert losses(launched(cache, GG_CHECK="nan")) == pytest.approx(plain, rel=1e-4)
    done = launched(cache, PROGRAM.replace("x = np.linspace(-1", "x = np.linspace(np.nan"), GG_CHECK="nan")
    assert done.returncode != 0 and "NotFiniteError: matmul(f32[4,6], f32[8,6]) made a NaN" in done.stderr
    assert "made by dense0" in done.stderr and "there is a NaN in data0" in done.stderr
    for number, made in ((-1.0, "a NaN"), (0.0, "an infinity")):
        done = launched(cache, f"from gluongraph import nd\nnd.log(nd.array([{number}]))", GG_CHECK="nan")
        assert done.returncode != 0 and f"NotFiniteError: log(f32[1]) made {made}" in done.stderr


def test_log_and_debug_levels(cache: str, plain: list[float]) -> None:
    """Each level says more; GG_LOG says one thing; all of it goes to stderr."""
    texts = []
    for level in "12345":
        done = launched(cache, GG_DEBUG=level)
        assert losses(done) == plain
        texts.append(done.stderr)
    assert all(len(a) < len(b) for a, b in itertools.pairwise(texts))
    assert "launches" in texts[0] and "fuse:" not in texts[1] and "fuse: " in texts[2]
    assert (
        "def " not in texts[2] and "after fuse" in texts[3] and "prim_func" not in texts[3] and "prim_func" in texts[4]
    )
    assert re.fullmatch(r"(?:# after fuse .*\n)(?:.*\n)+", launched(cache, GG_LOG="fuse").stderr)
    memory = launched(cache, GG_LOG="memory").stderr
    assert memory and memory in texts[1]
    assert [line.split(":")[0] for line in launched(cache, GG_LOG="pass").stderr.splitlines()] == [
        each.name for each in PIPELINE if each.when(Context())
    ]
