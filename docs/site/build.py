"""Builds the documentation site: the pages of docs/, and a reference made of the docstrings of the public modules.

python docs/site/build.py FOLDER [options of sphinx-build]

The pages are copied to FOLDER-source first, where three things are added: CONTRIBUTING.md and CHANGELOG.md, which lie
outside of docs/; the navigation, made of the links of docs/index.md; a page for each module of docs/reference.md.
Sources are written for a code host: links between pages are relative, and one that leads nowhere is an error here.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.cmd.build import main as sphinx

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")
FORWARDED = {"compile": "gluongraph.step.compile", "load": "gluongraph.artefact"}  # and where their docstrings are
MODULE = re.compile(r"^\| `(gluongraph[\w.]*)` \|", re.MULTILINE)


def pages() -> dict[Path, str]:
    """Each file of the sources, and its name in the site's."""
    own = {path: str(path.relative_to(DOCS)) for path in (*DOCS.rglob("*.md"), *DOCS.rglob("*.svg"))}
    return own | {ROOT / name: name for name in ("CONTRIBUTING.md", "CHANGELOG.md")}


def moved(page: Path, names: dict[Path, str]) -> str:
    """The text of a page, whose links lead to where their targets are in the site."""

    def target(link: re.Match[str]) -> str:
        path = (page.parent / link[1]).resolve()
        if path not in names:
            sys.exit(f"{page.relative_to(ROOT)}: the link to {link[1]} leads to no page of the site")
        return os.path.relpath(names[path], Path(names[page]).parent)

    text = re.sub(r"\[(?:dev/)?(\w+)\.md\](?=\()", r"[\1]", page.read_text())  # pages of the site are not called .md
    return LINK.sub(target, text)


def navigation(index: str) -> str:
    """Hidden tables of contents: a caption for each heading of the index, below it the pages that are linked there."""
    found, seen = [], set()
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        linked = [link.removesuffix(".md") for link in LINK.findall(section)]
        new = [name for name in dict.fromkeys(linked) if name not in seen]
        seen |= set(new)
        found += ["```{toctree}", ":hidden:", f":caption: {section.splitlines()[0]}", "", *new, "```", ""]
    return "\n".join(found)


def resolve(name: str) -> Any:
    """The module, or class, that users find under this name; `gluongraph.init` is an attribute of the package."""
    found: Any = importlib.import_module("gluongraph")
    for part in name.split(".")[1:]:
        if not hasattr(found, part):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    return found


def public(module: ModuleType) -> list[str]:
    """The names that a module documents: those in its __all__, else its own that have no underscore."""
    named = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__
    ]
    return sorted(name for name in named if not name.startswith("_"))


def entries(name: str, module: ModuleType, seen: set[type]) -> Iterator[str]:
    """A directive of autodoc for each public class and function; a class is indexed where it comes first."""
    for each in public(module):
        value = getattr(module, each)
        if not getattr(value, "__module__", "").startswith("gluongraph"):
            continue
        if inspect.isclass(value):
            kind = "exception" if issubclass(value, BaseException) else "class"
            yield f".. auto{kind}:: {name}.{each}\n   :members:\n" + ("   :no-index:\n" if value in seen else "")
            seen.add(value)
        elif callable(value):
            yield f".. autofunction:: {name}.{each}\n"


def reference(source: Path) -> None:
    """A page for each module, and links to them in the table."""
    table = source / "reference.md"
    names = MODULE.findall(table.read_text())
    (source / "reference").mkdir()
    seen: set[type] = set()
    for name, place in FORWARDED.items():
        setattr(resolve("gluongraph"), name, getattr(importlib.import_module(place), name))
    for name in names:
        head = f"{name}\n{'=' * len(name)}\n\n"
        if inspect.isclass(found := resolve(name)):
            body = f".. autoclass:: {name}\n   :members:\n   :special-members: __call__\n"
        else:
            body = f".. automodule:: {found.__name__}\n   :no-members:\n   :no-index:\n\n"
            body += "\n".join(entries(name, found, seen))
        (source / "reference" / f"{name}.rst").write_text(head + body)
    listed = [f"{name.removeprefix('gluongraph.')} <reference/{name}>" for name in names]
    contents = "\n".join(["```{toctree}", ":hidden:", "", *listed, "```"])
    linked = MODULE.sub(lambda row: f"| [`{row[1]}`](reference/{row[1]}.rst) |", table.read_text())
    table.write_text(f"{linked}\n{contents}\n")


def stage(source: Path) -> None:
    """Write the sources of the site."""
    shutil.rmtree(source, ignore_errors=True)
    names = pages()
    for path, name in names.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            (source / name).write_text(moved(path, names))
        else:
            shutil.copy(path, source / name)
    index = source / "index.md"
    index.write_text(f"{index.read_text()}\n{navigation(index.read_text())}")
    reference(source)


def main(folder: str, *options: str) -> int:
    """Build the site; the exit code of Sphinx."""
    site = Path(folder).resolve()
    source = site.with_name(f"{site.name}-source")
    stage(source)
    flags = ["--quiet", "--fail-on-warning", "--keep-going", "--fresh-env", "--conf-dir", str(Path(__file__).parent)]
    flags += ["--doctree-dir", str(source / ".doctrees")]
    failed = sphinx([*flags, *options, str(source), str(site)])
    if not failed:
        print(f"{site / 'index.html'}")
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
