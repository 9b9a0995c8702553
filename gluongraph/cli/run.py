"""Run a program on several ranks: processes that train together, on one host or more.

  gluongraph run -n 2 train.py --steps 2               # as `python train.py --steps 2`, twice, with MPI between them
  gluongraph run -n 2 --threads 1 -m gluongraph.mxnet train.py

What follows the script, or -m MODULE, is the program's own. Every line that a rank writes is marked: "[1] text".

When a rank fails, its error is shown and the others are ended, as they are by Ctrl-C. The exit code is that of the rank
that failed first, with 128 added to the number of a signal that has killed it. With --elastic the others go on.

`--hosts a:4,b:4` starts ranks 0 to 3 on host a and 4 to 7 on b, by ssh; gluongraph and the program are there under the
same paths. Their environment is that of the host, and all of this one named GG_..., MXNET_..., NCCL_..., OMP_...,
PYTHON... and TVM_...; what else mpiexec is to know is given by --mpiexec-args, as "--mca btl_tcp_if_include eth0".

It starts the mpiexec that lies beside Python, or the first on PATH: that of a cluster, or of the wheels that
pip install 'gluongraph[mpi]' brings. It sees to it that ranks may use all cores (mpiexec binds each to one), that more
ranks than cores can be tried, and that ranks share the cores: --threads says how many threads each has.
"""

from __future__ import annotations

import argparse
import os
import shlex
from importlib.machinery import PathFinder
from importlib.util import find_spec

from gluongraph.cli import Refused
from gluongraph.cli.words import count
from gluongraph.errors import pluralize

USAGE = """gluongraph run [options] SCRIPT [arguments ...]
       gluongraph run [options] -m MODULE [arguments ...]"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.usage = USAGE
    parser.add_argument("-n", "--ranks", type=count, metavar="N", help="how many (all that --hosts has room for)")
    parser.add_argument("--hosts", type=hosts, metavar="NAME:N,...", help="where, and how many on each")
    parser.add_argument("--threads", type=count, metavar="N", help="of each rank (its share of the cores)")
    parser.add_argument("--elastic", action="store_true", help="go on with the others when a rank is lost (Open MPI 5)")
    parser.add_argument("-q", "--no-prefix", action="store_true", help="do not mark lines with their rank")
    parser.add_argument("--mpiexec-args", type=split, default=[], metavar="TEXT", help="further options of mpiexec")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="...", help="run a module, as python -m")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="...", help="the script and its arguments")
    parser.set_defaults(scripts=True)


def hosts(text: str) -> list[tuple[str, int]]:
    """What 'name:count,name' says.

    >>> hosts("a:4,b")
    [('a', 4), ('b', 1)]
    """
    found = []
    for part in text.split(","):
        name, colon, ranks = part.partition(":")
        if not name or name.split() != [name] or (colon and not (ranks.isdecimal() and int(ranks))):
            raise argparse.ArgumentTypeError(f"{text!r} is no list of hosts: write NAME:COUNT,NAME:COUNT, as a:4,b:4")
        found.append((name, int(ranks or 1)))
    if twice := [name for i, (name, _) in enumerate(found) if name in dict(found[:i])]:
        raise argparse.ArgumentTypeError(f"{text!r} names {twice[0]} twice: give it all its ranks at once")
    return found


def split(text: str) -> list[str]:
    """The words of a text, as a shell splits it."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be split into words: {error}") from None


def run(options: argparse.Namespace) -> int:
    """Start it, and wait for its end. 130 and 143 if it was ended by SIGINT or SIGTERM."""
    from gluongraph.distributed.launcher import Job, launch
    from gluongraph.distributed.launcher_mpi import LaunchError

    job = Job(
        program=program(options),
        ranks=ranks(options),
        hosts=tuple(options.hosts or ()),
        threads=options.threads,
        elastic=options.elastic,
        prefix=not options.no_prefix,
        mpiexec_args=tuple(options.mpiexec_args),
    )
    try:
        return launch(job)
    except LaunchError as error:
        raise Refused(error) from None


def ranks(options: argparse.Namespace) -> int:
    """How many, of --ranks and --hosts."""
    room = sum(slots for _, slots in options.hosts or ())
    if not options.ranks and not room:
        raise Refused("how many ranks? -n 2, before the script")
    if room and (options.ranks or 0) > room:
        raise Refused(f"-n {options.ranks}, but --hosts has room for {pluralize(room, 'rank')}")
    return int(options.ranks or room)


def program(options: argparse.Namespace) -> tuple[str, ...]:
    """The words of the program: a script or -m and a module, and its arguments."""
    words = [*(["-m", *options.module] if options.module is not None else []), *options.program]
    if "--" in options.given:  # what follows stands there by itself: it is for the program, and so is the -- within it
        words += [*(["--"] if words else []), *options.arguments]
    if not words or words == ["-m"]:
        raise Refused("what is to be run? A script, or -m and a module")
    if words[0] == "-m":
        _check_module(words[1])
    elif not os.path.exists(words[0]):
        raise Refused(f"there is no file {words[0]}")
    return tuple(words)


def _check_module(name: str) -> None:
    """Is there such a module? Packages are not imported to look into them: ranks will tell."""
    top = name.partition(".")[0]
    if not top or (find_spec(top) is None and PathFinder.find_spec(top, [os.getcwd()]) is None):
        raise Refused(f"there is no module {top or name}")
