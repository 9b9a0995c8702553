"""`gluongraph inspect`: what it says is the plan's, and its page works in a browser."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
from xml.etree import ElementTree

import pytest

from gluongraph.cli import main
from gluongraph.cli.view.drawing import MOST, drawing
from gluongraph.cli.view.graphs import changed, picture
from gluongraph.cli.view.listing import GONE, NEW, SAME, changes, counted, listing
from gluongraph.errors import Origin
from gluongraph.ir.graph import Graph, TensorType
from gluongraph.ir.printer import read
from gluongraph.ops import input as leaf
from gluongraph.ops import relu, tanh

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


def told(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(["inspect", *command]) == 0
    return capsys.readouterr().out


def test_what_it_says_is_the_plans(work: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(told(capsys, "train.py", "--json", "--repeat", "2"))
    steps, places = data["steps"], data["places"]
    assert [step["number"] for step in steps] == list(range(len(steps))) and len(steps) >= 5
    assert {step["phase"] for step in steps} == {"forward", "backward", "update"}
    assert steps[0]["phase"] == "forward" and any("first" in step["layer"] for step in steps)
    assert all(step["seconds"] > 0 and step["bound"] > 0 for step in steps)
    for step in steps:
        assert all(other < step["number"] for other in step["before"])
        assert all(step["number"] in steps[other]["after"] for other in step["before"])
    assert max(p["offset"] + p["nbytes"] for p in places) <= data["scratch"] == data["footprint"]["scratch"]
    for one in places:  # two that are needed at once lie apart
        for other in places:
            if one["name"] != other["name"] and one["first"] <= other["last"] and other["first"] <= one["last"]:
                ends = (
                    one["offset"] + one["nbytes"] <= other["offset"]
                    or other["offset"] + other["nbytes"] <= one["offset"]
                )
                assert ends, (one, other)
    live = [sum(row) for row in zip(*data["live"].values(), strict=True)]
    at = [p for p in places if p["first"] <= data["peak"] <= p["last"]]
    assert sum(p["nbytes"] for p in at) == live[data["peak"]] == max(live) <= data["scratch"]
    traced, inline = (data["stages"][name]["ops"] for name in ("traced", "inline"))
    assert "softmax_cross_entropy" in traced and "softmax_cross_entropy" not in inline


def test_text_tells_layers_kernels_memory_and_passes(work: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "train.py:make_step", "--repeat", "2", "--rows", "3")
    for part in ("of the roofline", "first", "backward", "kernels, by lost (3 of", "scratch: ", "inline "):
        assert part in text


def test_equal_steps_give_equal_output(work: pathlib.Path, tmp_path: pathlib.Path) -> None:
    made = []
    for number in "12":
        page, pictures = tmp_path / f"{number}.html", tmp_path / f"{number}.svg"
        assert main(["inspect", "model.onnx", "--no-times", "--html", str(page), "--svg", str(pictures)]) == 0
        made.append((page.read_bytes(), pictures.read_bytes()))
    assert made[0] == made[1]


def test_the_graph_that_is_printed_reads_back(work: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = read(told(capsys, "train.py", "--graph", "simplify"))
    assert set(graph.updates) >= {"first_weight", "first_weight/mean"}
    assert "launches" in told(capsys, "train.py", "--plan")


def test_the_page_works_in_a_browser(work: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A click tells about a launch, the table sorts and filters, and nothing is fetched or complained about."""
    page = tmp_path / "step.html"
    assert main(["inspect", "train.py", "--html", str(page), "--repeat", "2"]) == 0
    text = page.read_text()
    assert not re.search(r"""(src|href)=(?!["'](#|data:))|https?://|@import|url\(""", text)
    if BROWSER is None:
        pytest.skip("no Chromium here: the page was not opened")
    acts = """
        document.querySelector('tr[data-i="2"]').click();
        document.querySelectorAll("#launches thead button")[6].click();
        document.getElementById("filter").value = "gemm";
        document.getElementById("filter").dispatchEvent(new Event("input"));
        const rows = [...document.querySelectorAll("#launches tbody tr")];
        document.body.dataset.times = rows.map((row) => row.cells[6].dataset.v).join(" ");
        const shown = rows.filter((row) => !row.hidden);
        const box = document.querySelector("svg.graph [data-box]");
        box.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
        document.body.dataset.lit = document.querySelectorAll(".wire.lit").length;
        document.body.dataset.shown = shown.map((row) => row.cells[5].textContent).join(" ");
    """
    page.write_text(text.replace("</body>", f"<script>{acts}</script></body>"))
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    more = [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--dump-dom", page.as_uri()]
    done = subprocess.run([BROWSER, *flags.split(), *more], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and ":CONSOLE" not in done.stderr, done.stderr
    assert re.search(r'<aside id="detail"><button.*<h3>2 k', done.stdout)
    (times,), (shown,) = (re.findall(f'data-{name}="([^"]*)"', done.stdout) for name in ("times", "shown"))
    (lit,) = re.findall('data-lit="([0-9]*)"', done.stdout)
    assert int(lit) > 0
    seconds = list(map(float, times.split()))
    assert seconds == sorted(seconds, reverse=True) and set(shown.split()) == {"gemm"}


def test_a_graph_as_a_picture(work: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    traced, fused = (read(told(capsys, "train.py", "--graph", name)) for name in ("traced", "fuse"))
    before, after = drawing(traced), drawing(fused)
    for drawn in (before, after):
        assert 0 < len(drawn.boxes) <= MOST and all(i < j for i, j in drawn.lines)
        assert {box.phase for box in drawn.boxes} == {"forward", "backward", "update"}
        for i, j in drawn.lines:  # down the forward pass, up the backward pass
            one, other = drawn.boxes[i], drawn.boxes[j]
            assert (
                one.phase != other.phase or one.phase == "update" or (one.row < other.row) == (one.phase == "forward")
            )
        text = picture(drawn)
        assert text.count("data-box=") == len(drawn.boxes) and text.count('class="wire"') == len(drawn.lines)
    assert sum(count for box in before.boxes for _, count in box.ops) > MOST  # so that they are put together
    assert all(name.startswith(("gemm(", "reduce(", "rowwise(", "loop(")) for b in after.boxes for name, _ in b.ops)
    gone, new = changed(before, after)
    assert (len(gone), len(new)) == (len(before.boxes), len(after.boxes)) and changed(before, before) == ([], [])


def test_boxes_never_wait_for_each_other() -> None:
    """Operations of one layer, with those of another between them, are two boxes."""
    x = y = leaf("x", TensorType((2, 3)))
    origins = {}
    for i in range(2 * MOST):
        y = (tanh, relu)[i % 2](y)
        origins[y] = Origin("", 0, f"net{i // 20 % 3}_{'ab'[i % 2]}")
    drawn = drawing(Graph({"x": x}, {"out0": y}, {}, origins))
    assert drawn.lines == tuple((i, i + 1) for i in range(len(drawn.boxes) - 1))
    assert [box.row for box in drawn.boxes] == list(range(len(drawn.boxes)))
    assert [box.name for box in drawn.boxes[:4]] == ["net0", "net1", "net2", "net0"]


def test_before_and_after_a_pass_as_a_file(work: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert main(["inspect", "train.py", "--graph", "fuse", "--svg", str(tmp_path / "fuse.svg")]) == 0
    root = ElementTree.parse(tmp_path / "fuse.svg").getroot()
    styles = [each.get("class") for each in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert "box gone" in styles and "box new" in styles


def test_changes_between_graphs() -> None:
    x = leaf("x", TensorType((2, 3)))
    one, two = Graph({"x": x}, {"y": tanh(relu(x))}), Graph({"x": x}, {"y": tanh(tanh(x))})
    before, after = listing(one), listing(two)
    assert [(mark, line.split(" = ")[1].split("(")[0]) for mark, line in changes(before, after)] == [
        (GONE, "relu"),
        (SAME, "tanh"),
        (NEW, "tanh"),
    ]
    assert counted(before.ops, after.ops) == "+1 tanh -1 relu"
    assert all(mark == SAME for mark, _ in changes(before, before))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["no.py"], "there is no file no.py"),
        (["data.npz"], "a subject is"),
        (["train.py:nothing"], "has no nothing; its functions: network, make_step"),
        (["train.py:network"], "gives no batch"),
        (["train.py:network", "--input", "4,8", "--loss", "what"], "there is no loss what"),
        (["train.py:network", "--input", "4,8", "--optimizer", "sgd"], "--loss"),
        (["train.py:network", "--input", "4,8", "--compile", "what=1"], "no setting what"),
        (["train.py:network", "--input", "4,8", "--precision", "7"], "precision"),
        (["train.py:network", "--input", "4,9"], "train.py:network: "),
        (["train.py:make_step", "--loss", "l2"], "has made its step already"),
        (["train.py", "--nth", "2"], "wanted is number 2"),
        (["train.py:make_step", "--nth", "2"], "--nth is for scripts that run up to the call of a step"),
        (["train.py:make_step", "--freeze", "a"], "--freeze is for ONNX models"),
        (["train.py:make_step", "--inputs", "1"], "has made its step already"),
        (["train.py:make_step", "--data", "data.npz"], "--data is for what has no batch of its own"),
        (["train.py", "--input", "4,8"], "--input is for what has no batch of its own"),
        (["train.py:network", "--input", "4,8", "--inputs", "1"], "--inputs says how many arrays the --loss"),
        (["train.py:network", "--input", "4,8", "--arrays", "x"], "--arrays is for --data"),
        (["train.py:network", "--input", "4,8", "--batch-size", "4"], "--batch-size is for --data"),
        (["model.onnx", "--", "more"], "no script that would take arguments"),
        (["train.py", "--plan", "--json"], "--json is for another answer than --plan"),
        (["train.py", "--graph", "traced", "--html", "a.html"], "--html is for another answer than --graph"),
        (["model.onnx", "--input", "z=1,2"], "no input z"),
        (["model.onnx", "--data", "none.npz"], "there is no file none.npz"),
        (["train.py", "--html", "no/such/folder.html"], "there is no such folder"),
        (["train.py", "--graph", "what"], "there is no pass what"),
    ],
)
def test_what_is_refused(work: pathlib.Path, wrong: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(work.iterdir())
    if wrong[:2] == ["train.py", "--nth"]:
        (work / "short.py").write_text("import train\nstep, x, y = train.make_step()\nstep(x, y)\n")
        wrong, before = ["short.py", *wrong[1:]], sorted(work.iterdir())
    assert main(["inspect", *wrong]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gluongraph inspect: ") and said in error and error.count("\n") == 1
    assert sorted(work.iterdir()) == before or "short.py" in wrong


def test_a_script_that_fails_says_where(work: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (work / "wrong.py").write_text("import gluongraph\n\nraise ValueError('so it is')\n")
    assert main(["inspect", "wrong.py"]) == 1
    assert capsys.readouterr().err == "gluongraph inspect: wrong.py:3: ValueError: so it is\n"
    (work / "wrong.py").write_text("def (\n")
    assert main(["inspect", "wrong.py"]) == 2
