"""`python -m gluongraph` is the command `gluongraph`."""

import sys

from gluongraph.cli import main

if __name__ == "__main__":
    sys.exit(main())
