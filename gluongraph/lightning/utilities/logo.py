"""What examples of Lightning's print before they begin."""

import sys


def cli_lightning_logo() -> None:
    """Print name and version, where Lightning prints its logo.

    >>> cli_lightning_logo()  # doctest: +ELLIPSIS
    gluongraph ...
    """
    print(f"gluongraph {sys.modules['gluongraph'].__version__}")
