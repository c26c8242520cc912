"""The command line of a bench: `--help` says what it measures and starts nothing."""

import argparse


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """Return a parser; `about`: the docstring of the bench's module."""
    return argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
