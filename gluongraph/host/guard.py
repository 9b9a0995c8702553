"""`guard.py PARENT COMMAND...` becomes the command, which the system kills when the process PARENT ends.

The request outlasts exec. To make it between fork and exec, in a process with threads, is not safe in Python.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG, SIGKILL = 1, 9

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as wrong:
        sys.exit(f"{sys.argv[2]}: {wrong.strerror}")
