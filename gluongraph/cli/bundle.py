"""Puts an exported training into a folder that trains without Python: runner, libraries, artefact.

  gluongraph bundle digits.gga -o digits/                       # what `step.export("digits.gga")` wrote
  digits/gg-run digits/digits.gga --data x.npy,y.npy --steps 100 --save run    # there, with nothing installed

  gluongraph bundle digits.gga -o digits/ --embed               # with a library and a header for programs in C
  gcc app.c -Idigits/include -Ldigits/lib -lgluongraph

The runner is compiled by g++, or what CXX names, the first time, and then kept. docs/deploy.md says the rest.

A bundle runs the code of its artefact: it is made only if you have exported that here, or a key that is trusted here
has signed it (gluongraph key); --trust file takes any other. gg-run --key FILE has the device ask for a signature too.
"""

from __future__ import annotations

import argparse

from gluongraph.cli.subject import trust_argument


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("artefact", help="the file that step.export wrote")
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="a folder that does not exist yet")
    parser.add_argument("--embed", action="store_true", help="the library and the header for C as well")
    parser.add_argument("--json", action="store_true", help="for machines")
    trust_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Make the bundle, and say how large it is."""
    from pathlib import Path

    from gluongraph.artefact.bundle import bundle
    from gluongraph.cli import Refused
    from gluongraph.cli.words import sentence
    from gluongraph.errors import MXNetError
    from gluongraph.host.terminal import as_json

    if not Path(options.artefact).is_file():
        raise Refused(f"{options.artefact}: there is no such file; `gluongraph compile -o` writes artefacts")
    try:
        size = bundle(options.artefact, options.output, options.embed, options.trust)
    except (MXNetError, OSError) as error:
        raise Refused(sentence(error)) from None
    program = Path(options.output) / "gg-run"
    if options.json:
        as_json({"folder": options.output, "bytes": size, "program": str(program)})
    else:
        print(f"{options.output}: {size / 2**20:.1f} MiB; {program} {program.parent / Path(options.artefact).name}")
    return 0
