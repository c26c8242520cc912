"""The command that lets outside tools read the events."""

import argparse
from collections.abc import Callable
from typing import Any


def add_subscribe(add: Callable[..., Any], command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `leaseway subscribe`."""
    parser = command(
        add,
        "subscribe",
        "subscribe",
        "give an outside tool credentials to read every event, and say how",
        examples=[
            "leaseway subscribe --add dashboard",
            "leaseway subscribe --list",
            "leaseway subscribe --remove dashboard",
        ],
        more="A tool reads all facts, decisions and control events from any place, and can do nothing else: it has an account\n"
        "of its own on the bus, with copies of the streams. Its key is DIR/keys/obs-NAME.nk; adding or removing one disconnects\n"
        "nobody else. Without NATS: GET /v1/lending/events of the projector, or [[webhooks]] of the configuration.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line (also when the output is piped)")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--add", default="", metavar="NAME", help="enrol this tool, or say again how it reads")
    what.add_argument("--remove", default="", metavar="NAME", help="retire this tool: it is cut off at once")
    what.add_argument("--list", action="store_true", help="list the enrolled tools")
