"""The command `leaseway audit what-if` on the command line. The parser brings its own way to add a command."""

import argparse
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

_ABOUT: Final = "say what other settings, links or rules would have decided and brought"
_MORE: Final = """\
Decides the stored history again with what is changed, shows the first decision that differs and how often each kind was
and would be taken, and runs the arrivals on in simulation: the product's own master and nodes, as it was and changed, by
the fits as of the beginning and by the recorded times. As it was shows how far to trust it. Nothing in the cluster changes.

TIME is so long before the end of the history (90s, 10m, 7d), a moment (2026-11-30T01:00:00Z) or the version of a commit.
The range begins with the busy time that --from lies in, or that follows; without --from, with the history."""
_EXAMPLES: Final = (
    "leaseway audit what-if --from 1h --policy none",
    "leaseway audit what-if --from 1h --without-link studio/chat=attic/chat --link studio/chat=loft/chat,load-if-unloaded",
    "leaseway audit what-if --copy history.zip --set offload_restore_delay=20s --report what-if.html",
)
_AGO: Final = re.compile(r"([0-9]{1,9})(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Moment(NamedTuple):
    """A moment of a history as people name it; one of the three."""

    at_us: int = 0
    """On the stream's clock."""
    before_end_us: int = 0
    version: int = 0
    """When the last input of this commit was stored."""


def add_what_if(add: Callable[..., Any], command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the action through the parser's own `command`."""
    parser = command(add, "what-if", "what_if", _ABOUT, examples=_EXAMPLES, more=_MORE)
    history = parser.add_argument_group("history")
    history.add_argument(
        "--against",
        choices=("stream", "archive", "copy"),
        help="what to read: the bus, ClickHouse, or the imported copy (default: stream; copy if there is nothing else)",
    )
    history.add_argument("--copy", type=Path, metavar="FILE", help="read an exported copy")
    history.add_argument(
        "--from", dest="since", type=_moment, metavar="TIME", help="begin there (default: at the beginning)"
    )
    history.add_argument("--to", dest="until", type=_moment, metavar="TIME", help="no request that came later")
    changes = parser.add_argument_group("changes")
    changes.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="NAME=VALUE", help="another value of a setting"
    )
    changes.add_argument(
        "--link",
        dest="links",
        action="append",
        default=[],
        metavar="OWNER/MODEL=HELPER/MODEL[,FLAG...]",
        help="a link more; flags: load-if-unloaded, restore-after-borrow, different-weights",
    )
    changes.add_argument(
        "--without-link",
        dest="without",
        action="append",
        default=[],
        metavar="OWNER/MODEL=HELPER/MODEL",
        help="a link less",
    )
    changes.add_argument(
        "--policy",
        default="",
        metavar="NAME",
        help="`none`: lend nothing; or another of `leaseway simulate`",
    )
    parser.add_argument("--json", action="store_true", help="print the whole answer as one JSON object")
    parser.add_argument("--report", type=Path, metavar="OUT", help="write the answer as an HTML file")


def _moment(text: str) -> Moment:
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return Moment(before_end_us=int(ago[1]) * _SECONDS[ago[2]] * 1_000_000)
    if text.isdecimal() and len(text) < 16 and int(text):
        return Moment(version=int(text))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None:
        raise argparse.ArgumentTypeError(
            f"must be a duration such as 10m, a moment such as 2026-11-30T01:00:00Z, or a version, got {text!r}"
        )
    in_utc = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return Moment(at_us=round(in_utc.timestamp() * 1_000_000))
