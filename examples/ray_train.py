"""Two workers on a local Ray cluster train handwritten digits together.

    pip install ray 'gluongraph[mpi,examples]'
    python examples/ray_train.py

Ray starts the workers and sets the variables that torchrun would set (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
MASTER_PORT): by them the workers find one another, and are ranks of MPI from then on.
"""

from __future__ import annotations

import argparse
import importlib.util
import socket
import sys
from collections.abc import Sequence
from pathlib import Path


def free_port() -> int:
    """A port of this host that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def worker(rank: int, workers: int, port: int, arguments: list[str]) -> float:
    """Be one rank: train, and return the accuracy on the test scans."""
    import os

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(workers), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TVM_NUM_THREADS": "1"}
    spec = importlib.util.spec_from_file_location("distributed_digits", EXAMPLE)
    assert spec is not None and spec.loader is not None
    digits = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(digits)
    accuracy: float = digits.main(arguments)
    return accuracy


EXAMPLE = str(Path(__file__).with_name("distributed_digits.py").resolve())


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Start the workers, wait for them, and return the accuracy that each of them has found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    options, rest = parser.parse_known_args(argv)
    if importlib.util.find_spec("ray") is None:
        sys.exit("this example needs Ray: pip install ray")
    import ray

    ray.init(num_cpus=options.workers, include_dashboard=False, log_to_driver=True)
    port, remote = free_port(), ray.remote(num_cpus=1, max_calls=1)(worker)
    found: list[float] = ray.get([remote.remote(i, options.workers, port, rest) for i in range(options.workers)])
    ray.shutdown()
    print(f"accuracy of each worker: {', '.join(f'{each:.1%}' for each in found)}")
    return found


if __name__ == "__main__":
    main()
