# ruff: noqa: INP001  (a script of the image, not a package)
"""Ends with 0 if the process of this container says that it is well: `python healthy.py PORT`."""

import sys
import urllib.request

with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/health", timeout=3) as answer:
    sys.exit(answer.status != 200)
