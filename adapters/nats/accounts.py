"""Who may do what on the bus: its accounts and the rights of every user, as nats-server reads them.

CORE holds the streams and those who are trusted with them. NODES holds nodes and gateways, which reach CORE only through
the services it exports: the server never asks whether a publisher may use its *reply* subject, so in one flat account any
user writes anywhere by letting the server answer there. Across accounts an answer goes back to the asker's account and no
further. Outside tools have an account of their own, and copies of the streams (adapters.nats.outside).
"""

import json
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from adapters.nats import outside
from adapters.nats.outside import MIRROR, OBS
from domain.subjects import CONTROL, DECISIONS, EVENTS, LEDGER, SNAPSHOTS

CORE, NODES, SYSTEM = "CORE", "NODES", "SYS"
"""Names of the accounts."""
STREAMS: Final = (EVENTS, CONTROL, LEDGER, DECISIONS, SNAPSHOTS)
FOLLOWED: Final = (EVENTS, CONTROL, DECISIONS)
"""Streams that members of NODES have durable consumers on (nodes on the latter two only)."""
STORED_EXPORTS: Final = ("lease.>", "health.>", "safe_mode.>", "request.>", "breaker.>")
"""What NODES may hear of CORE as it is published, after `lw.<cluster>.`: what the master has signed, and nothing else.

Control events are not signed, and within NODES a member can have an old one delivered anywhere by the reply subject of a pull:
so everybody reads them from the own durable consumer alone.
"""

Role = Literal[
    "master", "projector", "operator", "provisioner", "preflight", "system", "mirror", "node", "gateway", "observer"
]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One user of the bus."""

    name: str
    role: Role
    public_key: str
    """Its nkey, as NATS writes it (U...)."""
    url: str = ""
    """Where other nodes reach it; nodes only."""


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """Subjects that a user may publish and subscribe to; everything else is refused by the server and logged."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def inbox_prefix(name: str) -> str:
    """Return what the reply subjects of member `name` begin with; it may subscribe to no other inbox."""
    return f"_INBOX_{name}"


def rights(cluster: str, member: Member) -> Rights:
    """Return what `member` may do."""
    root, name = f"lw.{cluster}", member.name
    match member.role:
        case "node":
            return _node_rights(root, name)
        case "gateway":
            return _gateway_rights(root, name)
        case "master":
            said = (
                "hb.master",
                "ledger",
                "lease.>",
                "health.>",
                "request.>",
                "breaker.>",
                "safe_mode.>",
                "obs.>",
                "snap.>",
            )
            return _core_rights(root, name, said)
        case "operator" | "projector":
            return _core_rights(root, name, ("control.>",) if member.role == "operator" else ())
        case "provisioner":
            manage = tuple(f"$JS.API.STREAM.{verb}.*" for verb in ("CREATE", "UPDATE", "INFO"))
            consumers = tuple(f"$JS.API.CONSUMER.{verb}.>" for verb in ("CREATE", "DURABLE.CREATE", "INFO", "DELETE"))
            names = ("$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.STREAM.DELETE.*")
            return Rights(publish=(*manage, *consumers, *names), subscribe=(f"{inbox_prefix(name)}.>",))
        case "preflight":
            # asks for what nobody has, so as to be answered where it says: see adapters.nats.preflight
            return Rights(publish=(f"$JS.API.CONSUMER.RESET.{CONTROL}.{name}",), subscribe=(f"{inbox_prefix(name)}.>",))
        case "mirror" | "observer":
            tool = member.role == "observer"
            may, hears = outside.tool_rights(root, name) if tool else outside.keeper_rights(inbox_prefix(name))
            return Rights(publish=may, subscribe=hears)
        case "system":
            asked = ("$SYS.REQ.SERVER.*.RELOAD", "$SYS.REQ.SERVER.*.VARZ")
            return Rights(publish=asked, subscribe=(f"{inbox_prefix(name)}.>",))


def _node_rights(root: str, name: str) -> Rights:
    heard = (f"lease.{name}.>", f"lease.*.{name}.>", f"request.{name}.>", *_HEARD_BY_ALL)
    return Rights(
        publish=(f"{root}.node.{name}.>", f"{root}.hb.{name}", *_durable_rights(name, (CONTROL, DECISIONS))),
        subscribe=(f"{inbox_prefix(name)}.>", *(f"{root}.{subject}" for subject in heard)),
    )


def _gateway_rights(root: str, name: str) -> Rights:
    heard = ("node.*.status.>", "node.*.model.>", *_HEARD_BY_ALL)
    return Rights(
        publish=(f"{root}.gateway.{name.removeprefix('gateway-')}.>", *_durable_rights(name, FOLLOWED)),
        subscribe=(f"{inbox_prefix(name)}.>", *(f"{root}.{subject}" for subject in heard)),
    )


_HEARD_BY_ALL: Final = ("health.>", "breaker.>", "safe_mode.>")


def _durable_rights(name: str, streams: Sequence[str]) -> Iterable[str]:
    """Return the API subjects of the durable consumers called `name`: pull, acknowledge, start over."""
    for stream in streams:
        yield f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"
        yield f"$JS.API.CONSUMER.RESET.{stream}.{name}"
        yield f"$JS.ACK.{stream}.{name}.>"


def _core_rights(root: str, name: str, said: Sequence[str]) -> Rights:
    """Return the rights of one who reads every stream and says `said`, but makes, changes or empties no stream."""
    reading = [f"{root}.{subject}" for subject in said] + ["$JS.API.INFO", "$JS.FC.>"]
    for stream in STREAMS:
        reading += [
            f"$JS.API.STREAM.INFO.{stream}",
            f"$JS.API.STREAM.MSG.GET.{stream}",
            f"$JS.API.CONSUMER.CREATE.{stream}.>",
            f"$JS.API.CONSUMER.INFO.{stream}.*",
            f"$JS.API.CONSUMER.DELETE.{stream}.*",
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*",
            f"$JS.ACK.{stream}.>",
        ]
    return Rights(publish=tuple(reading), subscribe=(f"{inbox_prefix(name)}.>", f"{root}.>"))


def render_accounts(cluster: str, members: Sequence[Member]) -> str:
    """Return the accounts part of the server's configuration: accounts, users with their rights, exports and imports."""
    users: dict[str, list[str]] = {CORE: [], NODES: [], SYSTEM: [], MIRROR: [], OBS: []}
    for member in sorted(members, key=lambda each: each.name):
        users[account_of(member.role)].append(_render_user(member, rights(cluster, member)))
    exports, imports = _crossings(cluster)
    return "\n".join(
        [
            "# Written by `leaseway provision`; changes made by hand are lost.",
            f"system_account: {SYSTEM}",
            "accounts {",
            f"  {SYSTEM} {{ users: [\n{_lines(users[SYSTEM])}  ] }}",
            f"  {CORE} {{\n    jetstream: enabled\n    users: [\n{_lines(users[CORE])}    ]",
            f"    exports: [\n{_lines(exports + outside.core_exports())}    ]\n  }}",
            f"  {NODES} {{\n    users: [\n{_lines(users[NODES])}    ]",
            f"    imports: [\n{_lines(imports)}    ]\n  }}",
            outside.render(f"lw.{cluster}", _lines(users[MIRROR]), _lines(users[OBS])),
            "}\n",
        ]
    )


def account_of(role: Role) -> str:
    """Return the account that members of `role` sign in to."""
    match role:
        case "node" | "gateway" | "preflight":
            return NODES
        case "system":
            return SYSTEM
        case "mirror":
            return MIRROR
        case "observer":
            return OBS
        case _:
            return CORE


def _crossings(cluster: str) -> tuple[list[str], list[str]]:
    """Return (exports of CORE, imports of NODES).

    Heartbeats are a service too, not a stream of NODES: a service's reply subject is replaced at the border, so that
    nobody in CORE can be made to answer to a subject that a node chose.
    """
    root = f"lw.{cluster}"
    services = [f"{root}.node.>", f"{root}.gateway.>", f"{root}.hb.>"]
    for stream in FOLLOWED:
        services += [f"$JS.API.CONSUMER.RESET.{stream}.*", f"$JS.ACK.{stream}.>"]
    pulls = [f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*" for stream in FOLLOWED]
    heard = [f"{root}.{subject}" for subject in STORED_EXPORTS]
    exports = [f'{{service: "{subject}", accounts: [{NODES}]}}' for subject in services]
    exports += [f'{{service: "{subject}", response_type: stream, accounts: [{NODES}]}}' for subject in pulls]
    exports += [f'{{stream: "{subject}", accounts: [{NODES}]}}' for subject in heard]
    imports = [f'{{service: {{account: {CORE}, subject: "{subject}"}}}}' for subject in services + pulls]
    imports += [f'{{stream: {{account: {CORE}, subject: "{subject}"}}}}' for subject in heard]
    return exports, imports


def _render_user(member: Member, may: Rights) -> str:
    publish, subscribe = json.dumps(may.publish), json.dumps(may.subscribe)
    return f"{{nkey: {member.public_key}, permissions: {{publish: {publish}, subscribe: {subscribe}}}}} # {member.name}"


def _lines(entries: Iterable[str]) -> str:
    return "".join(f"      {entry}\n" for entry in entries)
