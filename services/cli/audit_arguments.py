"""The flags of `leaseway audit verify | export | import`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from services.cli.moments import A_VERSION, TIMES_OF_HISTORY, a_moment

WORKERS_MAX: Final = 64


def add_audit(add: Callable[..., Any], command: Callable[..., Any], number: Callable[[int, int], Any]) -> None:
    """Add the three."""
    _add_verify(add, command, number)
    exported = command(
        add,
        "export",
        "audit",
        "copy facts, control events and commits to a file, with digests, for an auditor without a bus",
        examples=["leaseway audit export history.zip"],
        more="The file is a zip archive of JSON lines (docs/reference/log.md). It is signed where this data directory has the\n"
        "master's key; give the auditor its SHA-256 and the key's fingerprint by another way.",
    )
    exported.add_argument("file", type=Path, metavar="FILE", help="the file to write")
    imported = command(
        add,
        "import",
        "audit",
        "check an exported copy and keep it in a data directory, to be verified there",
        examples=["leaseway audit import history.zip --data ./audit", "leaseway audit verify --data ./audit"],
    )
    imported.add_argument("file", type=Path, metavar="FILE", help="the exported copy")
    _fingerprint(imported)
    exported.set_defaults(action="export")
    imported.set_defaults(action="import")
    for parser in (exported, imported):
        _json(parser)


def _add_verify(add: Callable[..., Any], command: Callable[..., Any], number: Callable[[int, int], Any]) -> None:
    verify = command(
        add,
        "verify",
        "audit",
        "decide everything again and compare, bit for bit",
        examples=[
            "leaseway audit verify",
            "leaseway audit verify --from 2026-11-29 --to 2026-11-30 --report audit.html",
            "leaseway audit verify --against archive --workers 4",
            "leaseway audit verify --copy history.zip --fingerprint 1f0c-77aa-0b3d-9e52",
        ],
        more="Every commit is decided again from the facts that it names and compared byte for byte; the chain of digests, the\n"
        "nodes' own numbering, their MACs and the master's signed checkpoints are checked. Exit code 1: something differs.\n\n"
        + TIMES_OF_HISTORY,
    )
    moment = a_moment(A_VERSION)
    for flag, name, which in (("--from", "begin", "first"), ("--to", "end", "last")):
        about = f"{which} version, or when it was stored"
        verify.add_argument(flag, dest=name, type=moment, metavar="VERSION|TIME", help=about)
    verify.add_argument(
        "--against",
        choices=("stream", "archive", "copy"),
        help="what to read: the bus, ClickHouse (where the bus no longer reaches back), or the imported copy"
        " (default: stream; copy where the data directory has nothing else)",
    )
    verify.add_argument("--copy", type=Path, metavar="FILE", help="read an exported copy")
    verify.add_argument(
        "--workers",
        type=number(1, WORKERS_MAX),
        default=1,
        metavar="N",
        help="processes; each verifies a part that begins in the state in which the one before must end (default: 1)",
    )
    verify.add_argument(
        "--report",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="keep the report: .html for people, .json for programs, else text; may be given several times",
    )
    _fingerprint(verify)
    verify.add_argument(
        "--from-snapshot",
        action="store_true",
        help="begin at the newest snapshot of the state instead of the first commit",
    )
    verify.add_argument("--whole", action="store_true", help="verify older generations too, whose history was in doubt")
    verify.add_argument(
        "--batch",
        type=number(1, 1_000_000),
        metavar="N",
        help="fold at most N facts at once; the outcome may not depend on it",
    )
    _json(verify)
    verify.set_defaults(action="verify")


def _fingerprint(parser: Any) -> None:
    parser.add_argument(
        "--fingerprint",
        default="",
        metavar="FP",
        help="of the master's key, as you were told it: nothing else is believed",
    )


def _json(parser: Any) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object a line (also when the output is piped)")
