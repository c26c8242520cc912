"""The commands that change what operators decided: links and settings. The parser brings its own way to add a command."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

Command = Callable[..., argparse.ArgumentParser]

_END: Final = "An end is NODE/MODEL, split at the first slash only. The link is one-way."
_JSON: Final = "one JSON object a line (also when the output is piped)"
_IMPORT: Final = """\
FILE is TOML or JSON: groups whose members could all serve for each other.

  [[groups]]
  name = "chat"
  members = [
    { node = "studio", model = "chat" },
    { node = "attic", model = "chat-q4", restore = true },
  ]

Each pair of members on different nodes becomes two links, one a direction. The helper may load its model, and loads back what
that displaced where its `restore` says so. Pairs on one node are told and left out. All links are made at once, or none."""


def add_links(add: Callable[..., Any], command: Command) -> None:
    """Add the actions of `leaseway links`."""
    examples = [
        "leaseway links add studio/chat attic/chat",
        "leaseway links add studio/org/chat-7b attic/org/chat-7b-q4 --different-weights",
    ]
    about = "let an owner's model lend to a helper's model"
    added = _action(command(add, "add", "links", about, examples=examples, more=_END), "add")
    _ends(added)
    for flag, meaning in (
        ("--load-if-unloaded", "the helper may load its model to take lent work"),
        ("--restore-after-borrow", "the helper loads back what the lent work displaced"),
        ("--different-weights", "I know that the two models have different weights"),
    ):
        added.add_argument(flag, action="store_true", help=meaning)
    examples = ["leaseway links remove studio/chat attic/chat"]
    about = "end a link; what is lent stays out until it is answered"
    _ends(_action(command(add, "remove", "links", about, examples=examples), "remove"))
    _action(command(add, "list", "links", "list the links", examples=["leaseway links list"]), "list")
    _add_candidates(add, command)
    _add_import(add, command)


def _add_candidates(add: Callable[..., Any], command: Command) -> None:
    more = (
        "Every model of every other node is listed: with same, different or unknown weights (by their hash), and with the\n"
        "reason where it cannot be linked. A link to different weights wants an acknowledgement, one to unknown ones does not.\n"
        "Whether two models answer alike is for you to know."
    )
    examples = ["leaseway links candidates studio/chat"]
    about = "list the models that could help one, and why others cannot"
    listed = _action(command(add, "candidates", "link_candidates", about, examples=examples, more=more), "candidates")
    listed.add_argument("owner", metavar="OWNER/MODEL", help="who would lend")


def _add_import(add: Callable[..., Any], command: Command) -> None:
    examples = ["leaseway links import groups.toml --dry-run", "leaseway links import groups.json --skip-ineligible"]
    about = "make links of symmetric routing groups"
    read = _action(command(add, "import", "link_import", about, examples=examples, more=_IMPORT), "import")
    read.add_argument("file", type=Path, metavar="FILE", help="the groups, TOML or (ending in .json) JSON")
    for flag, meaning in (
        ("--dry-run", "say what would be done and do nothing"),
        ("--skip-ineligible", "make the other links although some pairs cannot be linked"),
        ("--different-weights", "I know that models of a group have different weights"),
    ):
        read.add_argument(flag, action="store_true", help=meaning)


def add_settings(add: Callable[..., Any], command: Command) -> None:
    """Add the actions of `leaseway settings`."""
    about = "list every setting, its value and where it comes from"
    _action(command(add, "list", "settings", about, examples=["leaseway settings list"]), "list")
    examples = [
        "leaseway settings set offload_lease_ttl=20s",
        "leaseway settings set offload_probe_idle=1m offload_streams=off",
    ]
    more = "An override holds until it is cleared, whatever the file states. With one bad value nothing is changed."
    changed = _action(command(add, "set", "settings", "override settings", examples=examples, more=more), "set")
    changed.add_argument(
        "changes",
        nargs="+",
        metavar="NAME=VALUE",
        help="the setting, with or without `cluster.`, and a number, a duration with its unit (90s), on or off",
    )
    examples = ["leaseway settings clear offload_lease_ttl"]
    more = "What the file states holds again, else the default."
    cleared = _action(command(add, "clear", "settings", "drop overrides", examples=examples, more=more), "clear")
    cleared.add_argument("names", nargs="+", metavar="NAME", help="the setting, with or without `cluster.`")


def _action(parser: argparse.ArgumentParser, action: str) -> argparse.ArgumentParser:
    parser.add_argument("--json", action="store_true", help=_JSON)
    parser.set_defaults(action=action)
    return parser


def _ends(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("owner", metavar="OWNER/MODEL", help="who may lend")
    parser.add_argument("helper", metavar="HELPER/MODEL", help="to whom")
