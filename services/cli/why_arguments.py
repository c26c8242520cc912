"""The commands that look back: why, and at. The parser brings its own way to add a command."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from services.cli.moments import A_VERSION, TIMES_OF_HISTORY, a_moment

_WHY: Final = (
    "leaseway why req_0190a7c45fc071a2b0a1d2e3f4a5b6c7",
    "leaseway why studio/chat",
    "leaseway why 00010a2b-812-1",
    "leaseway why 812 --json",
)
_WHY_MORE: Final = (
    "Of a request (the header leaseway-request of its answer): its life, what it waited for, every candidate of each decision\n"
    "that touched it, and what lending won or cost. Of NODE/MODEL: why nothing is lent now. Of a lease: what was lent under\n"
    "it, and whether it paid. Of a commit, by its version: what it read and decided. Asks the projector; NATS where it is away.\n"
    "What nobody knows is an error that says how far back each of the two reaches, and which nodes and models there are."
)
_AT: Final = (
    "leaseway at 812",
    "leaseway at 5m studio/chat",
    "leaseway at 2026-11-30T01:20:00Z",
    "leaseway at 812 --copy history.zip",
)
_AT_MORE: Final = (
    "Queues, leases, measured costs, health, links, settings, breakers and loads, folded from the stored facts and decisions.\n"
    "At a time: the newest commit until then, and the facts stored since.\n\n" + TIMES_OF_HISTORY
)
_JSON: Final = "one JSON object a line (also when the output is piped)"


def add_why(add: Callable[..., Any], command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands through the parser's own `command`."""
    about = "say why a request, a lease, a commit or a model went as it did"
    why = command(add, "why", "why", about, examples=_WHY, more=_WHY_MORE)
    why.add_argument(
        "what", metavar="REQUEST|LEASE|COMMIT|NODE/MODEL", help="request id, lease id, version of a commit, or a model"
    )
    why.add_argument("--json", action="store_true", help=_JSON)
    at = command(add, "at", "at", "show the state of the cluster at a version or a time", examples=_AT, more=_AT_MORE)
    at.add_argument("moment", type=a_moment(A_VERSION), metavar="VERSION|TIME", help="version of the ledger, or a time")
    at.add_argument("only", metavar="NODE[/MODEL]", nargs="?", default="", help="only what concerns this node or model")
    at.add_argument("--copy", type=Path, metavar="FILE", help="read an exported copy, not the bus")
    at.add_argument("--json", action="store_true", help=_JSON)
