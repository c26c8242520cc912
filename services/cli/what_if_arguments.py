"""The command `leaseway audit what-if` on the command line. The parser brings its own way to add a command."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from services.cli.moments import A_VERSION, TIMES_OF_HISTORY, a_moment

_ABOUT: Final = "say what other settings, links or rules would have decided and brought"
_MORE: Final = f"""\
Decides the stored history again with what is changed, shows the first decision that differs and how often each kind was
and would be taken, and runs the arrivals on in simulation: the product's own master and nodes, as it was and changed, by
the fits as of the beginning and by the recorded times. As it was shows how far to trust it. Nothing in the cluster changes.

{TIMES_OF_HISTORY}
VERSION is when the last fact of that commit was stored.
The range begins with the busy time that --from lies in, or that follows; without --from, with the history."""
_EXAMPLES: Final = (
    "leaseway audit what-if --from 1h --policy none",
    "leaseway audit what-if --from 1h --without-link studio/chat=attic/chat --link studio/chat=loft/chat,load-if-unloaded",
    "leaseway audit what-if --copy history.zip --set offload_restore_delay=20s --report what-if.html",
)


def add_what_if(add: Callable[..., Any], command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the action through the parser's own `command`."""
    parser = command(add, "what-if", "what_if", _ABOUT, examples=_EXAMPLES, more=_MORE)
    history, moment = parser.add_argument_group("history"), a_moment(A_VERSION)
    history.add_argument(
        "--against",
        choices=("stream", "archive", "copy"),
        help="what to read: the bus, ClickHouse, or the imported copy (default: stream; copy if there is nothing else)",
    )
    history.add_argument("--copy", type=Path, metavar="FILE", help="read an exported copy")
    history.add_argument(
        "--from", dest="since", type=moment, metavar="VERSION|TIME", help="begin there (default: at the beginning)"
    )
    history.add_argument("--to", dest="until", type=moment, metavar="VERSION|TIME", help="no request that came later")
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
