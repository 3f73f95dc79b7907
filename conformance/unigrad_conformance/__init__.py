"""The conformance suite of unigrad: tests that run against a backend by name, and the command that runs them.

``unigrad check NAME`` runs it. Nothing here imports a framework or a backend by name.
"""

import sys

# `python -m` puts the caller's folder first on the path, where a folder named as a framework would be taken for it.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    del sys.path[0]
