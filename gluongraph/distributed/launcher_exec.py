"""`launcher_exec.py PARENT COMMAND...` becomes the command, which gets SIGTERM when the process PARENT ends.

As `gluongraph/host/guard.py`, which has the command killed. mpiexec needs time: one that is killed leaves its folder in
/tmp behind, and the shared memory of its ranks in /dev/shm.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG, SIGTERM = 1, 15

if __name__ == "__main__":
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
    try:
        os.execv(sys.argv[2], sys.argv[2:])
    except OSError as wrong:
        sys.exit(f"{sys.argv[2]}: {wrong.strerror}")
