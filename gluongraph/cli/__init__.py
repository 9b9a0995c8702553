"""The command `gluongraph`: one file for each of its subcommands.

A subcommand is a module here with a docstring that teaches, `arguments(parser)`, and `run(options)`, which prints its
answer and returns an exit code; its line in COMMANDS makes it known. Modules import what is large within `run`.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable, Collection, Sequence

from gluongraph.host.interrupts import ends_with

COMMANDS = {  # name: what --help says of it
    "bench": "time training steps against other frameworks, and kernels against the machine",
    "bundle": "a folder that trains an exported step without Python",
    "compile": "compile a step ahead of its first call, so that the next process finds its code in the cache",
    "completion": "a script by which a shell completes these commands",
    "diff": "what differs between two steps, graphs or dumps: by pass, by launch, in memory",
    "doctor": "what gluongraph finds on this machine, and what to install",
    "fit": "train a file's LightningModule, with options of the module, its data and the Trainer",
    "inspect": "where the time and the memory of a step go: as text, SVG, or a page for a browser",
    "key": "whose compiled code runs here: your keys, and those of people you trust",
    "ops": "the operators, their kinds, and what has a gradient",
    "replay": "run a step's graph compiled and in numpy, and say where they part",
    "run": "run a program on several ranks, on one host or more",
    "simulate": "predict the time of a step on many ranks",
    "train": "train a script's net or an ONNX model on data in files, with checkpoints",
    "tune": "measure which ways to write a step's kernels are fastest on this machine, and keep that",
}
FINE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130


class Refused(Exception):
    """What was asked for cannot be: said in one sentence, with exit code 2."""


class Failed(Exception):
    """The work failed: said in one sentence, with exit code 1."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand. Exit codes: 0 fine; 1 the work failed, or two things differ; 2 refused; 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without a character shows ?, and the command goes on
    given = list(sys.argv[1:] if argv is None else argv)
    own = given.index("--") if "--" in given else len(given)  # what follows is for a script that a command runs
    reader = parser()
    options = reader.parse_args(given[:own], argparse.Namespace(given=given, arguments=given[own + 1 :]))
    if options.arguments and not hasattr(options, "scripts"):
        reader.error(f"{options.command} runs no script that would take arguments after --")
    run = importlib.import_module(f"{__name__}.{options.command}").run
    try:
        code: int = run(options)
        sys.stdout.flush()
        return code
    except Refused as error:
        return complain(options.command, error, REFUSED)
    except Failed as error:
        return complain(options.command, error, FAILED)
    except KeyboardInterrupt:
        return ends_with(complain(options.command, "interrupted", INTERRUPTED))
    except BrokenPipeError:  # whoever was reading has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if os.environ.get("GG_DEBUG", "0") not in ("", "0"):
            raise
        from gluongraph.cli.words import sentence

        return complain(options.command, f"{type(error).__name__}: {sentence(error)}", FAILED)


def complain(command: str, error: object, code: int) -> int:
    """The error, in a line that names the command; the exit code."""
    print(f"gluongraph {command}: {error}", file=sys.stderr)
    return code


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    return parsers()[0]


def parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The whole command line, and the part of each subcommand."""
    made = argparse.ArgumentParser(
        prog="gluongraph",
        description="gluongraph: a compiler for the whole training step.",
        epilog="gluongraph COMMAND --help says more, with examples. "
        "Exit codes: 0 fine; 1 the work failed, or two things differ; 2 refused, and nothing was written; "
        "130 interrupted. GG_DEBUG=1 shows where errors come from.",
    )
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    found = {}
    for name, line in COMMANDS.items():
        module = importlib.import_module(f"{__name__}.{name}")
        found[name] = commands.add_parser(
            name, help=line, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.arguments(found[name])
    return made, found


def chosen(known: Collection[str]) -> Callable[[str], list[str]]:
    """A converter of 'a,b' to some of the known names."""

    def convert(text: str) -> list[str]:
        names = [part for part in text.split(",") if part]
        if unknown := [part for part in names if part not in known]:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}; there are {', '.join(known)}")
        return names

    return convert
