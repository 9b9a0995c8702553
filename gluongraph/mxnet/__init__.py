"""Old scripts, unchanged: `import mxnet` finds gluongraph.

    python -m gluongraph.mxnet script.py arguments ...

runs a script that says `import mxnet as mx` or `from mxnet import gluon, nd`; `gluongraph.mxnet.install()` does the
same for the imports that follow in a program. What is missing raises NotImplementedError, which names the attribute and
the nearest thing that exists. Such an error is an AttributeError or an ImportError too, so that scripts which probe
with hasattr, or with try and except ImportError, go on as they would with an older MXNet.
"""

from gluongraph.mxnet.modules import install, uninstall

__all__ = ["install", "uninstall"]
