"""What examples of Lightning's print before they begin."""

import gluongraph


def cli_lightning_logo() -> None:
    """Print name and version, where Lightning prints its logo.

    >>> cli_lightning_logo()  # doctest: +ELLIPSIS
    gluongraph ...
    """
    print(f"gluongraph {gluongraph.__version__}")
