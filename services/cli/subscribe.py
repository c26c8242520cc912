"""`leaseway subscribe --add | --list | --remove`: credentials of outside tools, and how to use them."""

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from adapters.nats.accounts import Member, inbox_prefix
from adapters.nats.enrolment import Roster, load_roster, seed_path
from adapters.nats.outside import DOMAIN, MIRRORED, PREFIX
from adapters.nats.provision import Provisioned, administer, provision_tools
from domain.errors import BadConfigError, BadIdError, UnreachableError
from domain.ids import node_id
from services.cli.reach import Here, here
from services.cli.show import Output
from services.data_directory import held_data, holder_of, is_standalone, make_data
from services.lifecycle import EXIT_OK
from services.standalone.provisioning import bus_alone

_COLUMNS: Final = {"tool": "tool", "member": "signs in as", "key": "key"}


def run(parsed: argparse.Namespace) -> int:
    """Enrol, retire or list outside tools."""
    place, out = here(parsed), Output(as_json=parsed.json)
    if parsed.add:
        tool = _tool(parsed.add)
        _on_bus(place, lambda url: _add(place, out, url, tool))
    elif parsed.remove:
        tool = _tool(parsed.remove)
        _on_bus(place, lambda url: _remove(place, out, url, tool))
    else:
        rows = [
            _row(place, member.name) for member in _tools(load_roster(place.config.data, place.config.cluster.name))
        ]
        out.rows("outside tools", rows, _COLUMNS, none="none; enrol one with `leaseway subscribe --add NAME`")
    return EXIT_OK


def _tool(name: str) -> str:
    try:
        return node_id(name)
    except BadIdError as error:
        raise BadIdError("tool", name, error.rule) from None


def _on_bus(place: Here, act: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    """Run `act` with the url of the bus; that of a standalone directory that nothing runs on runs for as long as this takes."""
    data = place.config.data
    make_data(data)
    if not (is_standalone(data) and holder_of(data) is None):
        asyncio.run(act(place.bus_url))
        return

    async def alone() -> None:
        async with bus_alone(place.config) as url:
            await act(url)

    with held_data(data):
        asyncio.run(alone())


async def _add(place: Here, out: Output, url: str, tool: str) -> None:
    done = await _provisioned(place, url, added=(tool,))
    await _require_known(place, url, f"{PREFIX}{tool}")
    row = _row(place, f"{PREFIX}{tool}")
    reads = (
        "from the oldest event on" if f"{MIRRORED[0]}/{row['member']}" in done.mirrors_made else "on from where it was"
    )
    out.say(_lesson(place, row, reads), row)


async def _provisioned(place: Here, url: str, **tools: tuple[str, ...]) -> Provisioned:
    try:
        return await provision_tools(place.config.data, url, place.config.cluster.name, **tools)
    except UnreachableError as error:
        raise UnreachableError(f"{error}; {place.start_hint()}, then run this again") from None


async def _require_known(place: Here, url: str, member: str) -> None:
    """Return if every server lets the new tool in.

    Raises:
        UnreachableError: one does not: it reads an accounts file of its own.
    """
    for each in url.split(","):
        try:
            async with administer(place.config.data, each, member):
                continue
        except UnreachableError as error:
            accounts = place.config.data / "nats" / "accounts.conf"
            hint = f"if it runs elsewhere, bring it {accounts} and run this again"
            raise UnreachableError(f"{error}; {hint}") from None


async def _remove(place: Here, out: Output, url: str, tool: str) -> None:
    data, cluster = place.config.data, place.config.cluster.name
    known = [member.name for member in _tools(load_roster(data, cluster))]
    if f"{PREFIX}{tool}" not in known:
        named = ", ".join(name.removeprefix(PREFIX) for name in known) or "none"
        raise BadConfigError(f"--remove {tool!r}: must be an enrolled tool; there are: {named}")
    await _provisioned(place, url, removed=(tool,))
    out.say(f"tool {tool} is removed and cut off; its key is gone", {"tool": tool, "removed": True})


def _tools(roster: Roster) -> list[Member]:
    return [member for member in roster.members if member.role == "observer"]


def _row(place: Here, member: str) -> dict[str, Any]:
    """Return what a program has to know in order to read as `member`."""
    key, server = str(seed_path(place.config.data, member).absolute()), place.bus_url
    cli = f"nats --server {server} --nkey {key} --inbox-prefix {inbox_prefix(member)}"
    return {
        "tool": member.removeprefix(PREFIX),
        "member": member,
        "key": key,
        "server": server,
        "inbox_prefix": inbox_prefix(member),
        "js_domain": DOMAIN,
        "streams": list(MIRRORED),
        "consumer": member,
        "subjects": f"lw.{place.config.cluster.name}.>",
        "nats_live": f"{cli} sub 'lw.{place.config.cluster.name}.>'",
        "nats_stored": f"{cli} --js-domain {DOMAIN} --timeout 1s consumer next {MIRRORED[-1]} {member} --count 100",
    }


def _lesson(place: Here, row: dict[str, Any], reads: str) -> str:
    streams = ", ".join(row["streams"])
    return (
        f"tool {row['tool']} reads {streams} {reads}\n"
        f"its key, for it alone (mode 0600): {row['key']}\n\n"
        f"with the nats command line, what is stored from now on:\n  {row['nats_live']}\n"
        f"and what is stored already, a hundred at a time (leases; the same for the other streams):\n  {row['nats_stored']}\n\n"
        "without it: twenty lines of Python with nats-py are in docs/how-to/subscribe.md; without NATS:\n"
        f"  curl -N '{place.endpoints.projector}/v1/lending/events?since=10m'"
    )
