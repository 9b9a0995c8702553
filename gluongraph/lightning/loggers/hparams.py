"""hparams.yaml: hyperparameters as plain data. Neither writing nor reading it runs anything that it names.

Written is what YAML calls block style: a line for each key, lists with "- ", other values as JSON or plain words. Read
is that, and JSON within lines. What else YAML has (tags, anchors, texts over several lines) is refused.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from gluongraph.errors import FormatError
from gluongraph.host import disk, json_text

# Words that need no quotation marks: YAML takes them for nothing but text.
_PLAIN = re.compile(r"[A-Za-z_/][\w./+@-]*(?: [\w./+@-]+)*")
_MEANS_SOMETHING = re.compile(r"(?i)(null|true|false|yes|no|on|off|\.?inf|\.?nan|~)")
# Numbers as YAML 1.1 has them: those with an exponent have a point as well.
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?")
_ARRAY = 64  # elements of an array that is written as a list
_WORDS = {"null": None, "~": None, "": None, "true": True, "false": False, ".nan": math.nan, ".inf": math.inf}
_WORDS |= {"-.inf": -math.inf}
_KEY = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s"'\[\]{}#&*!|>%@`,?:-][^:#]*?|-?\d[^:#]*?):(?:\s+(.*))?$""")


def save_hparams_to_yaml(config_yaml: str | os.PathLike[str], hparams: Any) -> None:
    """Write hyperparameters: numbers, texts, None, and lists and dictionaries of them; of all else a text.

    Classes and functions become their names, arrays and sets lists, and other objects the name of their class.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "hparams.yaml"
    >>> save_hparams_to_yaml(path, {"lr": 0.1, "layers": [64, 10], "net": {"name": "mlp", "bias": True}})
    >>> print(path.read_text(), end="")
    layers:
    - 64
    - 10
    lr: 0.1
    net:
      bias: true
      name: mlp
    >>> load_hparams_from_yaml(path)["net"]
    {'bias': True, 'name': 'mlp'}

    Raises:
        OSError: it cannot be written.
    """
    given = hparams if isinstance(hparams, Mapping) else vars(hparams)
    text = dumped({str(name): plain(value) for name, value in given.items()})
    disk.whole(Path(config_yaml), lambda file: file.write(text.encode()))


def load_hparams_from_yaml(config_yaml: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `save_hparams_to_yaml` has written.

    Raises:
        FormatError: it is no such file; says which line.
        OSError: it cannot be read.
    """
    try:
        text = Path(config_yaml).read_text(encoding="utf-8")
        found = loaded(text)
    except ValueError as wrong:
        raise FormatError(f"{config_yaml}: {wrong}") from None
    if not isinstance(found, dict):
        raise FormatError(f"{config_yaml}: it holds no hyperparameters by name")
    return found


def plain(value: Any) -> Any:
    """A value as numbers, texts, None, lists and dictionaries.

    >>> import numpy as np
    >>> plain({"size": (3, np.int64(4)), "act": max, "kind": dict, 5: None})
    {'size': [3, 4], 'act': 'max', 'kind': 'dict', '5': None}
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [plain(part) for part in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "dtype") and not isinstance(value, type):
        array = value.asnumpy() if hasattr(value, "asnumpy") else value
        small = hasattr(array, "tolist") and math.prod(getattr(array, "shape", ())) <= _ARRAY
        return plain(array.tolist()) if small else type(value).__qualname__
    if isinstance(value, bool | int | float | str):  # of classes derived from them
        return next(kind(value) for kind in (bool, int, float, str) if isinstance(value, kind))
    if hasattr(value, "__qualname__"):
        module = value.__module__ or "builtins"
        return value.__qualname__ if module in ("builtins", "__main__") else f"{module}.{value.__qualname__}"
    return str(value) if type(value).__module__ == "torch" else type(value).__qualname__


# -- writing


def dumped(value: Any) -> str:
    """The text of plain data.

    >>> print(dumped({"a": 1e-5, "b": [], "c": "on", "d": [{"x": 1, "y": None}]}), end="")
    a: 1.0e-05
    b: []
    c: 'on'
    d:
    - x: 1
      y: null
    """
    return "".join(f"{line}\n" for line in _lines(value)) if value else f"{_scalar(value)}\n"


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key in sorted(value):
            part = value[key]
            if isinstance(part, dict | list) and part:
                yield f"{_text(key)}:"
                indent = "" if isinstance(part, list) else "  "
                yield from (f"{indent}{line}" for line in _lines(part))
            else:
                yield f"{_text(key)}: {_scalar(part)}"
    elif isinstance(value, list) and value:
        for part in value:
            first, *rest = _lines(part)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        if math.isnan(value):
            return ".nan"
        if math.isinf(value):
            return ".inf" if value > 0 else "-.inf"
        text = repr(value)
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    return (
        {None: "null", True: "true", False: "false"}[value]
        if value is None or value is True or value is False
        else (json.dumps(value))
    )


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and not _MEANS_SOMETHING.fullmatch(text):
        return text
    simple = text.isascii() and text.isprintable() and "'" not in text
    return f"'{text}'" if simple else json.dumps(text, ensure_ascii=True)


# -- reading


def loaded(text: str) -> Any:
    """The data of a text.

    >>> loaded("lr: 0.1\\nsteps: [10, 20]\\nnet:\\n  name: mlp\\n")
    {'lr': 0.1, 'steps': [10, 20], 'net': {'name': 'mlp'}}

    Raises:
        ValueError: what is not plain data in block style; says which line.
    """
    lines = [_Line(number, line) for number, line in enumerate(text.splitlines(), 1) if _Line(number, line).text]
    lines = [line for line in lines if line.text not in ("---", "...")]
    if not lines:
        return {}
    if len(lines) == 1 and not _KEY.match(lines[0].text) and not lines[0].text.startswith("- "):
        return _value(lines[0].text, lines[0])
    found, rest = _block(lines, lines[0].indent, 0)
    if rest:
        raise ValueError(f"line {rest[0].number}: its indentation fits nothing above it")
    return found


class _Line:
    """A line without its comment: how far it is indented, and the rest."""

    def __init__(self, number: int, line: str):
        if "\t" in line[: len(line) - len(line.lstrip())]:
            raise ValueError(f"line {number}: tabs cannot indent it")
        stripped = line.strip()
        self.number, self.indent = number, len(line) - len(line.lstrip(" "))
        self.text = "" if stripped.startswith("#") else stripped

    def within(self, offset: int) -> _Line:
        """The line without its first characters, which count as indentation."""
        return _Line(self.number, " " * (self.indent + offset) + self.text[offset:].strip())


def _block(lines: list[_Line], indent: int, depth: int) -> tuple[Any, list[_Line]]:
    """The list or dictionary that begins here, and the lines after it."""
    if depth > json_text.DEEPEST:
        raise ValueError(f"line {lines[0].number}: it is nested too deeply")
    if lines[0].text == "-" or lines[0].text.startswith("- "):
        return _list(lines, indent, depth)
    return _dictionary(lines, indent, depth)


def _list(lines: list[_Line], indent: int, depth: int) -> tuple[list[Any], list[_Line]]:
    found: list[Any] = []
    while lines and lines[0].indent == indent and (lines[0].text == "-" or lines[0].text.startswith("- ")):
        line, offset = lines[0], len(lines[0].text) - len(lines[0].text[1:].lstrip())
        if line.text == "-":
            lines = lines[1:]
            if lines and lines[0].indent > indent:
                part, lines = _block(lines, lines[0].indent, depth + 1)
            else:
                part = None
        elif _KEY.match(line.text[offset:]) or line.text[offset:].startswith("- "):
            part, lines = _block([line.within(offset), *lines[1:]], indent + offset, depth + 1)
        else:
            part, lines = _value(line.text[offset:], line), lines[1:]
        found.append(part)
    return found, lines


def _dictionary(lines: list[_Line], indent: int, depth: int) -> tuple[dict[str, Any], list[_Line]]:
    found: dict[str, Any] = {}
    while lines and lines[0].indent == indent and not lines[0].text.startswith("- "):
        line, lines = lines[0], lines[1:]
        if (parts := _KEY.match(line.text)) is None:
            raise ValueError(f"line {line.number}: {line.text!r} is no key with a value")
        key, rest = str(_value(parts[1], line, key=True)), (parts[2] or "").strip()
        if key in found:
            raise ValueError(f"line {line.number}: {key!r} is there twice")
        if rest and not rest.startswith("#"):
            found[key] = _value(rest, line)
        elif lines and (lines[0].indent > indent or (lines[0].indent == indent and lines[0].text.startswith("- "))):
            found[key], lines = _block(lines, lines[0].indent, depth + 1)
        else:
            found[key] = None
    return found, lines


def _value(text: str, line: _Line, key: bool = False) -> Any:
    """A value within a line: a number, a word, a text in quotation marks, or JSON."""
    if text[:1] in ('"', "[", "{"):
        try:
            return json_text.parse(text)
        except ValueError as wrong:
            raise ValueError(f"line {line.number}: {text} is no JSON: {wrong}") from None
    if text.startswith("'"):
        if len(text) < 2 or not text.endswith("'") or "'" in text[1:-1].replace("''", ""):
            raise ValueError(f"line {line.number}: {text} does not end with its quotation mark")
        return text[1:-1].replace("''", "'")
    if text[:1] and text[0] in "&*!|>%@`":
        raise ValueError(f"line {line.number}: {text!r}: only plain data is read, no {text[0]!r} of YAML's")
    text = text.split(" #")[0].rstrip()
    if key:
        return text
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    return float(text.replace("_", "")) if _FLOAT.fullmatch(text) else text
