"""Keys and the roster of the bus: which members there are and which nkey each signs in with."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from adapters.clock import random_token
from adapters.keys import Credentials, Signer, derive_mac_key, load_credentials, new_nkey, save_credentials
from adapters.nats.accounts import Member, Role, render_accounts
from adapters.nats.outside import PREFIX, TOOLS_MAX
from domain.errors import BadConfigError
from domain.ids import node_id

_LOG: Final = logging.getLogger("leaseway.provision")
_CORE_ROLES: Final[tuple[Role, ...]] = (
    "master",
    "projector",
    "operator",
    "provisioner",
    "preflight",
    "system",
    "mirror",
)
RESERVED: Final = frozenset({*_CORE_ROLES, "observer"})
"""Names that no node may have: each is the name of a credentials file and of an inbox."""


class Roster(msgspec.Struct, frozen=True, kw_only=True):
    """Every member of one cluster's bus, in order of name; `<data>/nats/roster.json`."""

    cluster: str
    members: tuple[Member, ...]

    def member(self, name: str) -> Member | None:
        """Return the member called `name`, if there is one."""
        return next((member for member in self.members if member.name == name), None)


def key_path(data: Path, name: str) -> Path:
    """Return where the credentials of `name` are."""
    return data / "keys" / f"{name}.json"


def load_roster(data: Path, cluster: str) -> Roster:
    """Return the roster of `data`, empty if there is none yet.

    Raises:
        BadConfigError: it is another cluster's, or not a roster.
    """
    path = data / "nats" / "roster.json"
    if not path.exists():
        return Roster(cluster=cluster, members=())
    try:
        roster = msgspec.json.decode(path.read_bytes(), type=Roster)
    except msgspec.DecodeError as error:
        raise BadConfigError(f"roster {path}: not a roster: {error}") from None
    if roster.cluster != cluster:
        raise BadConfigError(
            f"cluster {cluster!r}: the data directory holds cluster {roster.cluster!r}; use another --data"
        )
    return roster


def ensure_core_members(data: Path, cluster: str) -> Roster:
    """Return the roster with the members that every cluster has, made where they are missing, so that a server can start."""
    node_id(cluster)
    roster = _without_lost_operator(data, load_roster(data, cluster))
    for role in _CORE_ROLES:
        if roster.member(role) is None:
            roster = _with_member(data, roster, name=role, role=role, url="")
    _name_operator(data, roster)
    _save(data, roster)
    return roster


def _without_lost_operator(data: Path, roster: Roster) -> Roster:
    """Return the roster without an operator whose key is gone: else none would be made, and no word could end safe mode."""
    if roster.member("operator") is None or key_path(data, "operator").exists():
        return roster
    _LOG.warning("operators_key_made_anew", extra={"file": str(key_path(data, "operator"))})
    return Roster(cluster=roster.cluster, members=tuple(each for each in roster.members if each.name != "operator"))


def _name_operator(data: Path, roster: Roster) -> None:
    """Write the operator's public key into the master's credentials, where they are here: it is made before the operator's."""
    path, operator = key_path(data, "master"), roster.member("operator")
    if operator is None or not path.exists():
        return
    master = load_credentials(path)
    if master.operator_public != operator.public_key:
        save_credentials(path, msgspec.structs.replace(master, operator_public=operator.public_key))


def enrol(data: Path, cluster: str, nodes: Mapping[str, str], gateways: Mapping[str, str]) -> Roster:
    """Return the roster with `nodes` and `gateways` (id -> url) in it; keys are made for new ones only.

    A member whose credentials file has been moved to its own machine keeps its key.

    Raises:
        BadIdError: an id has another form than ids have.
        BadConfigError: an id is reserved.
    """
    wanted: list[tuple[str, Role, str]] = [(_require_free(node), "node", url) for node, url in sorted(nodes.items())]
    wanted += [(f"gateway-{node_id(gateway)}", "gateway", url) for gateway, url in sorted(gateways.items())]
    roster = ensure_core_members(data, cluster)
    for name, role, url in wanted:
        roster = _with_member(data, roster, name=name, role=role, url=url)
    _save(data, roster)
    return roster


def enrol_tool(data: Path, cluster: str, tool: str) -> Roster:
    """Return the roster with the outside tool `tool` in it, a member called `obs-<tool>`.

    Its nkey seed is in a file of its own as well, as the tools of NATS take one (`seed_path`).

    Raises:
        BadIdError: `tool` has another form than ids have.
        BadConfigError: there are too many.
    """
    name = f"{PREFIX}{node_id(tool)}"
    roster = ensure_core_members(data, cluster)
    known = [member for member in roster.members if member.role == "observer" and member.name != name]
    if len(known) >= TOOLS_MAX:
        raise BadConfigError(
            f"subscribe: at most {TOOLS_MAX} tools may be enrolled, there are {len(known)} besides {tool!r}"
        )
    roster = _with_member(data, roster, name=name, role="observer", url="")
    path = key_path(data, name)
    if path.exists():
        _write_secret(seed_path(data, name), load_credentials(path).nkey_seed.encode() + b"\n")
    _save(data, roster)
    return roster


def seed_path(data: Path, name: str) -> Path:
    """Return where the nkey seed of an outside tool is, alone in its file."""
    return data / "keys" / f"{name}.nk"


def _write_secret(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    draft.replace(path)


def forget_keys(data: Path, name: str) -> None:
    """Remove the credentials of an outside tool that was retired."""
    for path in (key_path(data, name), seed_path(data, name)):
        path.unlink(missing_ok=True)


def retire(data: Path, cluster: str, name: str) -> Roster:
    """Return the roster without `name`; after the next reload the server cuts it off."""
    roster = load_roster(data, cluster)
    kept = tuple(member for member in roster.members if member.name != name or member.role in _CORE_ROLES)
    roster = Roster(cluster=cluster, members=kept)
    _save(data, roster)
    return roster


def _require_free(node: str) -> str:
    if node in RESERVED or node.startswith(("gateway-", PREFIX)):
        raise BadConfigError(
            f"node id {node!r}: is reserved; must not be {', '.join(sorted(RESERVED))} or begin with gateway- or {PREFIX}"
        )
    return node_id(node)


def _with_member(data: Path, roster: Roster, *, name: str, role: Role, url: str) -> Roster:
    known = roster.member(name)
    public_key = known.public_key if known is not None else _make_credentials(data, roster, name, role)
    member = Member(name=name, role=role, public_key=public_key, url=url)
    others = tuple(each for each in roster.members if each.name != name)
    return Roster(cluster=roster.cluster, members=tuple(sorted((*others, member), key=lambda each: each.name)))


def _make_credentials(data: Path, roster: Roster, name: str, role: Role) -> str:
    """Make the credentials of `name` unless a run that was cut short made them already; return the public key."""
    path = key_path(data, name)
    if path.exists():
        public: str = Signer(load_credentials(path).nkey_seed).public
        return public
    seed, public_key = new_nkey()
    credentials = Credentials(name=name, role=role, cluster=roster.cluster, nkey_seed=seed)
    match role:
        case "master":
            secret, (master_seed, master_public) = random_token(32), new_nkey()
            credentials = msgspec.structs.replace(
                credentials,
                cluster_mac_secret=secret,
                mac_key=derive_mac_key(secret, name),
                master_seed=master_seed,
                master_public=master_public,
            )
        case "provisioner" | "preflight" | "system" | "mirror":
            pass
        case "observer":  # it signs nothing, and checks decisions against the master's key
            master = load_credentials(key_path(data, "master"))
            credentials = msgspec.structs.replace(credentials, master_public=master.master_public)
        case _:
            master = load_credentials(key_path(data, "master"))
            credentials = msgspec.structs.replace(
                credentials,
                cluster_mac_secret=master.cluster_mac_secret if role == "operator" else "",
                mac_key=derive_mac_key(master.cluster_mac_secret, name),
                master_public=master.master_public,
            )
    save_credentials(path, credentials)
    return public_key


def _save(data: Path, roster: Roster) -> None:
    """Write the roster, and the accounts that follow from it, each whole or not at all."""
    folder = data / "nats"
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / "roster.json", msgspec.json.format(msgspec.json.encode(roster), indent=1))
    _replace(folder / "accounts.conf", render_accounts(roster.cluster, roster.members).encode())


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_bytes(content)
    draft.replace(path)
