"""`leaseway version`."""

import argparse
from importlib.metadata import version

from services.lifecycle import EXIT_OK


def run(_parsed: argparse.Namespace) -> int:
    """Print the version."""
    print(f"leaseway {version('leaseway')}")
    return EXIT_OK
