"""What outside tools may do on the bus: an account to read in, and behind it one that holds copies of the streams.

MIRROR holds a mirror of every stream that is public. OBS holds the tools, and no stream at all: whoever shares an account with
a stream can destroy it, whatever its rights, by having an empty answer sent to `$JS.API.STREAM.DELETE.<stream>` as the reply
of something that it may ask (measured; docs/adr/0020). So OBS reaches the mirrors as NODES reaches CORE, through services, and
hears what they store, as they store it: a tool that reads nothing holds up the mirror's own sender, never who speaks in CORE.

MIRROR in turn cannot make consumers in CORE: a mirror follows a durable consumer that `leaseway provision` has made there, and
may do no more than begin again where it stopped.
"""

from typing import Final

from domain.subjects import CONTROL, DECISIONS, EVENTS

MIRROR, OBS = "MIRROR", "OBS"
"""Names of the accounts."""
MIRRORED: Final = (EVENTS, CONTROL, DECISIONS)
"""Every stored event: facts, control events, published decisions. The ledger and the snapshots are not for the public."""
KEEPER: Final = "mirror"
"""Name of the one user of MIRROR, and of the durable consumer of each stream that its mirror follows."""
PREFIX: Final = "obs-"
"""What the names of outside tools begin with, apart from those of nodes and gateways."""
DOMAIN: Final = "mirror"
"""What tools say for the JetStream that they ask: `--js-domain mirror`, `jetstream(domain="mirror")`."""
CONNECTIONS_MAX, SUBSCRIPTIONS_MAX, PAYLOAD_BYTES_MAX = 16, 32, 4096
"""Of all tools together; of each connection; of each message that one may send: requests and acknowledgements."""
TOOLS_MAX: Final = 32
_TO_CORE: Final = "core.API"
_TO_MIRROR: Final = f"$JS.{DOMAIN}.API"


def mirror_source(stream: str) -> dict[str, object]:
    """Return where the mirror of `stream` takes it from, as JetStream's configuration has it."""
    consumer = {"name": KEEPER, "deliver_subject": delivered(stream)}
    return {"name": stream, "external": {"api": _TO_CORE, "deliver": ""}, "consumer": consumer}


def delivered(stream: str) -> str:
    """Return the subject on which CORE hands `stream` to its mirror."""
    return f"mirror.{stream}"


def tool_rights(root: str, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what an outside tool may (publish, subscribe to): its own durable consumers on the mirrors, and what they store.

    It asks for no stored message and for no state, its consumers' own neither: the server has one queue of such requests for all
    accounts, and one tool can fill it, so that nobody in CORE begins to read (measured; docs/adr/0020).
    """
    publish: list[str] = []
    for stream in MIRRORED:
        publish += [f"{_TO_MIRROR}.CONSUMER.{verb}.{stream}.{name}" for verb in ("MSG.NEXT", "RESET")]
        publish.append(f"$JS.ACK.{stream}.{name}.>")
    return tuple(publish), (f"_INBOX_{name}.>", f"{root}.>")


def keeper_rights(inbox: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what the keeper of the mirrors may (publish, subscribe to); it runs in no service."""
    asked = [
        f"$JS.API.STREAM.{verb}.{stream}" for verb in ("CREATE", "UPDATE", "INFO", "DELETE") for stream in MIRRORED
    ]
    for stream in MIRRORED:
        asked += [f"$JS.API.CONSUMER.{verb}.{stream}.*" for verb in ("CREATE", "INFO", "DELETE")]
        asked += [f"$JS.API.CONSUMER.CREATE.{stream}.*.>", f"$JS.API.CONSUMER.NAMES.{stream}"]
    return tuple(asked), (f"{inbox}.>",)


def core_exports() -> list[str]:
    """Return what CORE gives to MIRROR: each public stream through one durable consumer."""
    exports = []
    for stream in MIRRORED:
        exports.append(f'{{stream: "{delivered(stream)}", accounts: [{MIRROR}]}}')
        exports += [f'{{service: "{subject}", accounts: [{MIRROR}]}}' for subject in _following(stream)]
    return exports


def render(root: str, keepers: str, tools: str) -> str:
    """Return both accounts as nats-server reads them; `keepers` and `tools` are their users, a line each."""
    of_core = []
    for stream in MIRRORED:
        reset, flow = _following(stream)
        of_core += [
            f'{{stream: {{account: CORE, subject: "{delivered(stream)}"}}}}',
            f'{{service: {{account: CORE, subject: "{reset}"}}, to: "{reset.replace("$JS.API", _TO_CORE)}"}}',
            f'{{service: {{account: CORE, subject: "{flow}"}}}}',
        ]
    exports, of_mirror = (
        [f'{{stream: "{root}.>", accounts: [{OBS}]}}'],
        [f'{{stream: {{account: {MIRROR}, subject: "{root}.>"}}}}'],
    )
    for subject in _served():
        kind = "response_type: stream, " if ".NEXT." in subject else ""
        local = subject.replace("$JS.API", _TO_MIRROR)
        exports.append(f'{{service: "{subject}", {kind}accounts: [{OBS}]}}')
        to = f', to: "{local}"' if local != subject else ""
        of_mirror.append(f'{{service: {{account: {MIRROR}, subject: "{subject}"}}{to}}}')
    limits = (
        f"max_connections: {CONNECTIONS_MAX}, max_subscriptions: {SUBSCRIPTIONS_MAX}, max_payload: {PAYLOAD_BYTES_MAX}"
    )
    return (
        f"  {MIRROR} {{\n    jetstream: {{max_streams: {len(MIRRORED)}}}\n"
        f"    users: [\n{keepers}    ]\n    imports: [\n{_lines(of_core)}    ]\n    exports: [\n{_lines(exports)}    ]\n  }}\n"
        f"  {OBS} {{\n    limits: {{{limits}}}\n    users: [\n{tools}    ]\n    imports: [\n{_lines(of_mirror)}    ]\n  }}"
    )


def _following(stream: str) -> tuple[str, str]:
    """Return the subjects of (begin again, flow control) of the consumer that a mirror follows."""
    return f"$JS.API.CONSUMER.RESET.{stream}.{KEEPER}", f"$JS.FC.{stream}.>"


def _served() -> list[str]:
    """Return what MIRROR serves to OBS, in MIRROR's own words."""
    served = []
    for stream in MIRRORED:
        served += [f"$JS.API.CONSUMER.{verb}.{stream}.*" for verb in ("MSG.NEXT", "RESET")]
        served.append(f"$JS.ACK.{stream}.>")
    return served


def _lines(entries: list[str]) -> str:
    return "".join(f"      {entry}\n" for entry in entries)
