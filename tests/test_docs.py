"""Each block of Python in README.md and docs/ is run by a test, in the environment that `make demo` makes; each command
can be run there, or its page says what it needs. The command line's page has all commands."""

from __future__ import annotations

import ast
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from environment import PROJECT, ROOT, strangers

from gluongraph.cli import COMMANDS, parser

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# page -> how many blocks of Python it has, and the test that runs them all
RUN = {
    "README.md": (1, "examples/test_examples.py"),
    "artefact.md": (2, "docs/test_artefact.py"),
    "checkpoints.md": (1, "docs/test_checkpoints.py"),
    "cli.md": (1, "cli/test_examples.py"),
    "debugging.md": (1, "examples/test_examples.py"),
    "distributed.md": (1, "docs/test_distributed.py"),
    "deploy.md": (3, "examples/test_examples.py"),
    "lightning.md": (1, "docs/test_pages.py"),
    "memory.md": (1, "docs/test_memory.py"),
    "migrating.md": (3, "docs/test_pages.py"),
    "onnx.md": (3, "docs/test_onnx.py"),
    "precision.md": (1, "docs/test_precision.py"),
    "pytorch.md": (1, "docs/test_pages.py"),
    "scaling.md": (1, "docs/test_scaling.py"),
    "step.md": (2, "docs/test_step.py"),
    "tuning.md": (1, "docs/test_tuning.py"),
}


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_block_is_run(page: pathlib.Path) -> None:
    count, file = RUN.get(page.name, (0, ""))
    assert page.read_text().count("```python") == count, f"run all blocks of {page.name} in a test, and say which here"
    if count:
        text = (ROOT / "tests" / file).read_text()
        assert page.name in text and 'pytestmark = pytest.mark.usefixtures("demo_environment")' in text


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_files_that_a_page_names_exist(page: pathlib.Path) -> None:
    """Those of this repository, by their paths in it; NAME is for the reader to choose."""
    named = re.findall(
        r"(?<![\w/.-])((?:docs|examples|benchmarks|tests|passes|codegen|runtime|gluongraph)/[\w/]+\.\w+)",
        page.read_text(),
    )
    missing = [name for name in named if "NAME" not in name and not (ROOT / name).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_to_files(page: pathlib.Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]+)[)#]", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


def test_the_index_links_to_every_page() -> None:
    """The navigation of the site is made of it."""
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)]+\.md)\)", index.read_text())}
    assert linked == {*PAGES, ROOT / "CHANGELOG.md"} - {ROOT / "README.md", index}


def test_the_reference_has_every_public_module() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)
    golden = {file.stem.removeprefix("api_") for file in (ROOT / "tests" / "golden").glob("api_*.txt")}
    classes = {"gluongraph.compile": "gluongraph.step.TrainStep", "gluongraph.nd.NDArray": "gluongraph.nd"}
    assert {classes.get(name, name) for name in golden} <= set(rows)
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_of_the_command_line_has_all_commands(command: str) -> None:
    assert re.search(rf"^\| `{command}` \| .+ \|$", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)


COMMAND = re.compile(r"^    (?:\$ )?(?:env -i )?(?:\.venv/bin/)?((?:python|pip|make|gluongraph) .*)$", re.MULTILINE)


def commands(page: pathlib.Path) -> list[list[str]]:
    """The words of each line of a page that a shell is to run; where its output goes is left out."""
    lines = [re.sub(r" > [\w.]+", "", line.removesuffix("\\")) for line in COMMAND.findall(page.read_text())]
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_commands_are_there(page: pathlib.Path) -> None:
    """Subcommands take the options that are shown, targets of make and extras exist, and so do scripts and modules."""
    for program, *words in commands(page):
        line = " ".join([program, *words])
        if program == "gluongraph" and "--help" not in words:
            parser().parse_args(words)
        elif program == "make":
            assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.M), line
        elif words[:1] == ["install"]:
            assert all(extra in PROJECT["optional-dependencies"] for extra in re.findall(r"gluongraph\[(\w+)\]", line))
        elif words[:1] == ["-m"] and words[1].startswith("gluongraph"):
            assert (ROOT / words[1].replace(".", "/")).with_suffix(".py").exists() or (
                ROOT / words[1].replace(".", "/") / "__main__.py"
            ).exists(), line
        elif words[0].startswith(("benchmarks/", "examples/")):
            assert words[0] in SCRIPTS, line


# But for the one that another interpreter runs, which has MXNet, the plugin of pytest, the cases of a script, and the
# process that a benchmark starts.
SCRIPTS = sorted(
    f"{folder}/{path.name}"
    for folder in ("benchmarks", "examples")
    for path in (ROOT / folder).glob("*.py")
    if path.name not in ("mxnet_peer.py", "mxnet_suite_worker.py", "clients_cases.py", "training_loop_worker.py")
)
# Modules of PyTorch's, written as its users write them: torch is imported first, as the script's own text says.
OF_TORCH = {
    s for s in SCRIPTS if "    pip install torch\n" in (ROOT / s).read_text() and s.startswith("examples/lightning")
}
ALONE = [script for script in SCRIPTS if script not in OF_TORCH]
PEERS = {  # and what a script that needs it asks for first
    "torch": 'find_spec("torch")',
    "ray": 'find_spec("ray")',
    "mxnet": "GG_MXNET_PYTHON",
    **dict.fromkeys(("cuda", "nccl"), "except (ImportError"),  # a PyTorch that is built for CUDA installs them
}
HELP = """
import runpy, sys
from environment import PROJECT, Without, strangers
hidden = {*strangers("examples"), "pytest", "hypothesis", "_pytest"}
sys.meta_path[:] = [Without(hidden, finder) for finder in sys.meta_path]
for script in sys.argv[1:]:
    sys.argv[:], sys.path[0] = [script, "--help"], script.rpartition("/")[0]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        assert not ended.code, f"{script} --help: {ended.code}"
"""


def test_scripts_begin_in_the_environment_of_the_demo() -> None:
    line = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'tests/install')!r})\n{HELP}", *ALONE]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_need_nothing_else_later(script: str) -> None:
    """What they import within functions is there too, or a peer that they look for before."""
    text = (ROOT / script).read_text()
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    names -= {"torch"} if script in OF_TORCH else set()
    for name in names & {*strangers("examples"), *PEERS}:
        assert PEERS.get(name, "no such peer") in text or "except ImportError" in text, f"{script} imports {name}"
