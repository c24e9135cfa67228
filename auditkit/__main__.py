"""`python -m auditkit` is the `auditkit` command."""

import os
import sys

# `python -m` looks for modules in the current folder first, which may be a vendor's and hold a numpy.py (so nothing
# is imported before this that Python has not loaded anyway).
if not sys.flags.safe_path and os.path.realpath(sys.path[0]) == os.path.realpath(os.curdir):
    del sys.path[0]

from auditkit.cli.entry import main

if __name__ == "__main__":
    main()
