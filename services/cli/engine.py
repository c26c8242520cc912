"""`leaseway engine`: llama.cpp's own server."""

import argparse

from adapters.engines import llama_server


def run(parsed: argparse.Namespace) -> int:
    """Serve until stopped and return the exit code."""
    return llama_server.run(llama_server.options_from(parsed))
