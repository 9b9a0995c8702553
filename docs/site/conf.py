"""How Sphinx builds the site; docs/site/build.py writes its sources, and starts it.

Sphinx imports the modules that it documents. Many names of gluongraph are made or imported when they are asked for,
which tools that only read sources do not see.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

project = "gluongraph"
html_title = "gluongraph"
html_theme = "furo"
html_copy_source = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
smartquotes_action = "D"  # dashes alone: what stands in quotes is mostly an argument
myst_heading_anchors = 3
suppress_warnings = ["ref.python"]  # a type in a signature whose name several classes have
highlight_language = "text"  # of blocks that name no language: commands and what they print
autodoc_inherit_docstrings = False  # or `forward` of every layer would say what Block's says
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

CODE = re.compile(r"(`[^`]+`)")
PAGE = re.compile(r"docs/((?:dev/)?\w+)\.md")


SECTION = re.compile(r"(Args|Raises|Returns|Yields)(?: \(\w+\))?:")


def restructured(lines: list[str]) -> Iterator[str]:
    """The lines of a docstring, which are plain text with `code`, as reStructuredText.

    An example begins with >>> and ends with an empty line; what is indented behind an empty line is a program or a
    formula, and ends where the indentation does. Both stay as they are.
    """
    state, empty = "text", True
    for line in lines:
        text, indented = line.strip(), line.startswith("    ")
        if (state == "example" and not text) or (state != "example" and text and not indented):
            state = "section" if SECTION.fullmatch(text) else "text"
        if state != "block" and text.startswith(">>>"):
            state = "example"
        elif state == "text" and text and indented and empty:
            state = "block"
            yield from ("::", "")
        empty = not text
        if state in ("example", "block"):
            yield line
        elif section := SECTION.fullmatch(text):
            yield f"{section[1]}:"
        else:
            yield line[: len(line) - len(line.lstrip())] + _text(text)


def _text(text: str) -> str:
    """A line of prose: code as a literal, pages as links, and no character that means something else to Sphinx."""
    bullet, text = (text[:2], text[2:]) if text.startswith(("* ", "- ")) else ("", text)
    parts = CODE.split(text)
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = f"`{part}`" + ("\\ " if parts[i + 1][:1].isalnum() else "")
        else:
            plain = re.sub(r"([*|\\]|_(?!\w))", r"\\\1", part)
            parts[i] = PAGE.sub(r":doc:`\1 </\1>`", plain)
    return bullet + "".join(parts)


def signature(
    app: Any, what: str, name: str, obj: object, options: object, arguments: str | None, result: str | None
) -> tuple[str | None, str | None] | None:
    """What users pass to functions of arrays: their annotations name the nodes of a graph that stand for arrays."""
    if name == "gluongraph.step.TrainStep":  # which mx.compile makes, and nobody else
        return "", None
    if not name.startswith(("gluongraph.nd.", "gluongraph.random.")):
        return None
    shown = [text and re.sub(r"\b(?:\w+\.)*Node\b", "NDArray", text) for text in (arguments, result)]
    return shown[0], shown[1]


def setup(app: Any) -> None:
    """Sphinx calls this once; the docstrings are converted before napoleon reads their sections."""
    app.connect("autodoc-process-signature", signature)
    app.connect(
        "autodoc-process-docstring",
        lambda app, what, name, obj, options, lines: lines.__setitem__(slice(None), list(restructured(lines))),
        priority=400,
    )
