"""Starts the other ranks of `Trainer(devices=n)`: this program again, once for each of them."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys

from gluongraph.lightning.errors import misconfigured
from gluongraph.runtime.communicator.environment import launch, leave

_STARTED: list[subprocess.Popen[bytes]] = []


def start(devices: int, nodes: int) -> None:
    """Make this process the first of `devices` ranks, unless a launcher has started it as one; the others run the same
    command, and find the first one by the variables of torchrun.

    Raises:
        MisconfigurationException: several hosts, or a program that has no file to be started again.
    """
    if launch(os.environ).by != "alone" or _STARTED:
        return
    if nodes > 1:
        help = "gluongraph run --hosts a:4,b:4 train.py"
        raise misconfigured(f"num_nodes={nodes}: the ranks of several hosts are started by a launcher", help=help)
    command = _command()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": str(devices), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    threads = str(max((os.cpu_count() or 1) // devices, 1))
    common |= {name: os.environ.get(name, threads) for name in ("OMP_NUM_THREADS", "TVM_NUM_THREADS")}
    for rank in range(1, devices):
        mine = {**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        _STARTED.append(subprocess.Popen(command, env=mine, start_new_session=True))
    os.environ.update({**common, "RANK": "0", "LOCAL_RANK": "0"})
    atexit.register(_end)


def _command() -> list[str]:
    """The command of this process."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return [sys.executable, "-m", spec.name.removesuffix(".__main__"), *sys.argv[1:]]
    file = getattr(main, "__file__", None)
    if file is None or not os.path.exists(file):
        message = "devices > 1 in a program that is no file: the other ranks cannot be started"
        raise misconfigured(message, help="write it into a file, and gluongraph run -n 2 train.py")
    return [sys.executable, os.path.abspath(file), *sys.argv[1:]]


def _end() -> None:
    """Leave the job, for which the other ranks wait as well; then wait for them, and end those that hang."""
    leave()
    for process in _STARTED:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
