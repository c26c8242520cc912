"""An outside tool reads every stored event, from wherever it likes, and can do nothing else."""

import asyncio
import json
from contextlib import suppress

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError, ServiceUnavailableError

from adapters.nats.outside import CONNECTIONS_MAX, MIRROR, MIRRORED
from adapters.nats.preflight import preflight
from adapters.nats.provision import administer, provision, provision_tools, reload_servers
from domain.errors import BadConfigError, UnreachableError
from domain.subjects import CONTROL, DECISIONS, EVENTS
from tests.support.nats import CLUSTER, NODES, ServerUnderTest
from tests.support.rogue import ROOT
from tests.support.tools import API, ask, enrol, keeper, mirrors, take
from tests.support.waiting import until

pytestmark = pytest.mark.real

FACT, LEASE = f"{ROOT}.node.n1.status.accepting", f"{ROOT}.lease.n1.n2.0011223344556677.granted"
SETTING = f"{ROOT}.control.settings.cluster"
NEXT = f"{API}.CONSUMER.MSG.NEXT"


async def say(server: ServerUnderTest, count: int, *, start: int = 0) -> None:
    """Have n1 state `count` facts, numbered."""
    async with administer(server.data, server.url, "n1") as node:
        for number in range(start, start + count):
            await node.request(FACT, b'{"number":%d}' % number, timeout=5)


@pytest.fixture
async def bus(nats_server: ServerUnderTest) -> ServerUnderTest:
    """A bus with the tools dash and rogue, and one message on each stream."""
    await say(nats_server, 1)
    for name, subject in (("master", LEASE), ("operator", SETTING)):
        async with administer(nats_server.data, nats_server.url, name) as client:
            await client.request(subject, b"{}", timeout=5)
    await enrol(nats_server, "dash", "rogue")
    await until("the mirrors", lambda: hold(nats_server, dict.fromkeys(MIRRORED, 1)))
    return nats_server


async def hold(bus: ServerUnderTest, wanted: dict[str, int]) -> bool:
    return await mirrors(bus) == wanted


# ---- reading ---------------------------------------------------------------------------------------------------------


async def test_a_tool_reads_what_was_said_before_it_came_and_what_comes(bus: ServerUnderTest) -> None:
    client = await bus.client("obs-dash")
    assert {stream: [message.subject for message in await take(client, stream, "obs-dash", 1)] for stream in MIRRORED} == {
        EVENTS: [FACT], CONTROL: [SETTING], DECISIONS: [LEASE]
    }  # fmt: skip
    await say(bus, 3, start=1)
    numbers = [json.loads(message.data)["number"] for message in await take(client, EVENTS, "obs-dash", 3)]
    assert numbers == [1, 2, 3]


async def test_a_tool_that_comes_back_goes_on_where_it_was(bus: ServerUnderTest) -> None:
    await say(bus, 2, start=1)
    assert len(await take(await bus.client("obs-dash"), EVENTS, "obs-dash", 2)) == 2
    await bus.restart()
    again = await take(await bus.client("obs-dash"), EVENTS, "obs-dash", 1)
    assert [message.metadata.sequence.stream for message in again] == [3]


async def test_a_tool_hears_each_event_as_it_is_stored_and_none_that_is_not(bus: ServerUnderTest) -> None:
    client = await bus.client("obs-dash")
    heard = await client.subscribe(f"{ROOT}.>")
    await client.flush()
    async with administer(bus.data, bus.url, "master") as master:
        refused = await master.request(LEASE, b"{}", timeout=5, headers={"Nats-Expected-Last-Sequence": "99"})
        assert b'"error"' in refused.data
    await say(bus, 3, start=1)
    messages = [await heard.next_msg(5) for _ in range(3)]
    assert [(each.subject, each.headers["Nats-Stream"], each.headers["Nats-Sequence"]) for each in messages] == [
        (FACT, EVENTS, "2"), (FACT, EVENTS, "3"), (FACT, EVENTS, "4")
    ]  # fmt: skip


async def test_a_tool_joins_at_a_sequence_also_at_one_that_is_still_to_come(bus: ServerUnderTest) -> None:
    await say(bus, 2, start=1)
    client = await bus.client("obs-dash")
    await until("the mirror", lambda: hold(bus, {EVENTS: 3, CONTROL: 1, DECISIONS: 1}))
    await ask(client, f"CONSUMER.RESET.{EVENTS}.obs-dash", {"seq": 2})
    assert [message.metadata.sequence.stream for message in await take(client, EVENTS, "obs-dash", 2)] == [2, 3]
    await ask(client, f"CONSUMER.RESET.{EVENTS}.obs-dash", {"seq": 4})
    await say(bus, 1, start=3)
    assert [message.metadata.sequence.stream for message in await take(client, EVENTS, "obs-dash", 1)] == [4]
    assert (await ask(client, f"CONSUMER.RESET.{EVENTS}.obs-dash", {"seq": 3}))["reset_seq"] == 3
    assert [message.metadata.sequence.stream for message in await take(client, EVENTS, "obs-dash", 1)] == [3]


# ---- nothing else ----------------------------------------------------------------------------------------------------

RUIN = [
    *(f"{prefix}.STREAM.{verb}.{EVENTS}" for prefix in ("$JS.API", API) for verb in ("DELETE", "PURGE", "UPDATE", "CREATE")),
    f"$JS.API.STREAM.MSG.DELETE.{EVENTS}",
    f"$JS.API.CONSUMER.CREATE.{EVENTS}.more",
    f"{API}.CONSUMER.CREATE.{EVENTS}.more",
    f"{API}.CONSUMER.INFO.{EVENTS}.obs-rogue",
    f"{API}.STREAM.INFO.{EVENTS}",
    f"{API}.STREAM.MSG.GET.{EVENTS}",
    f"{API}.CONSUMER.DURABLE.CREATE.{EVENTS}.more",
    f"{API}.CONSUMER.DELETE.{EVENTS}.obs-dash",
    f"{NEXT}.{EVENTS}.obs-dash",
    f"{API}.CONSUMER.RESET.{EVENTS}.obs-dash",
    f"$JS.ACK.{EVENTS}.obs-dash.1.1.1.1.1",
    f"core.API.CONSUMER.RESET.{EVENTS}.mirror",
    f"$JS.FC.{EVENTS}.mirror.x",
    f"$JS.API.CONSUMER.RESET.{EVENTS}.mirror",
    "_INBOX_obs-dash.x",
    FACT, LEASE, SETTING, f"{ROOT}.ledger", f"{ROOT}.hb.n1", f"{ROOT}.obs.1.due", f"{ROOT}.anything",
]  # fmt: skip


def named(refused: list[str]) -> list[str]:
    """Return the subjects that the server has refused, as the client tells them: in small letters."""
    return sorted(each.split('"')[1] for each in refused)


async def test_a_tool_may_say_nothing_change_nothing_and_overhear_nobody(bus: ServerUnderTest) -> None:
    refused: list[str] = []
    rogue = await bus.client("obs-rogue", errors=refused)
    for subject in RUIN:
        await rogue.publish(subject, b"")
    await until("the refusals", lambda: len(refused) == len(RUIN))
    assert named(refused) == sorted(subject.lower() for subject in RUIN)
    assert await mirrors(bus) == dict.fromkeys(MIRRORED, 1)
    refused.clear()
    wanted = ["_INBOX_obs-dash.>", ">", "$JS.>", "$SYS.>", "mirror.>"]
    for subject in wanted:
        await rogue.subscribe(subject)
    await until("the refusals", lambda: len(refused) == len(wanted))
    assert named(refused) == sorted(subject.lower() for subject in wanted)


REPLIES = [
    f"$JS.API.STREAM.DELETE.{EVENTS}",
    f"$JS.API.STREAM.PURGE.{EVENTS}",
    f"{API}.STREAM.DELETE.{EVENTS}",
    f"$JS.API.CONSUMER.DELETE.{EVENTS}.obs-dash",
    f"{API}.CONSUMER.RESET.{EVENTS}.obs-dash",
    f"core.API.CONSUMER.RESET.{EVENTS}.mirror",
    f"$JS.API.CONSUMER.RESET.{EVENTS}.mirror",
    f"$JS.FC.{EVENTS}.mirror.x",
    FACT, LEASE, SETTING, f"{ROOT}.ledger",
]  # fmt: skip


async def ask_with_reply(client: Client, name: str, reply: str) -> None:
    """Ask everything that a tool may ask, to be answered at `reply`; empty answers, whole messages and API answers alike."""
    for body in (b'{"batch":1,"no_wait":true}', b'{"batch":5,"no_wait":true}', b'{"batch":1,"expires":1000000}'):
        await client.publish(f"{NEXT}.{EVENTS}.{name}", body, reply=reply)
    await client.publish(f"{API}.CONSUMER.RESET.{EVENTS}.{name}", b"", reply=reply)
    await client.flush()


async def test_no_answer_that_a_tool_asks_for_changes_anything(bus: ServerUnderTest) -> None:
    rogue = await bus.client("obs-rogue")
    dash = await bus.client("obs-dash")
    await take(dash, EVENTS, "obs-dash", 1)
    heard: list[Msg] = []

    async def note(message: Msg) -> None:
        heard.append(message)

    await dash.subscribe(f"{ROOT}.>", cb=note)
    await dash.flush()
    for reply in REPLIES:
        await ask_with_reply(rogue, "obs-rogue", reply)
    # answered after all of these, so that whatever they do has been done
    await ask(rogue, f"CONSUMER.RESET.{EVENTS}.obs-rogue")
    await say(bus, 1, start=1)
    assert [message.metadata.sequence.stream for message in await take(dash, EVENTS, "obs-dash", 1)] == [2]
    assert await mirrors(bus) == {EVENTS: 2, CONTROL: 1, DECISIONS: 1}
    core = (await bus.client("master")).jetstream()
    held = {
        stream: (await core.stream_info(stream)).state.messages for stream in (EVENTS, CONTROL, DECISIONS, "LW_LEDGER")
    }
    assert held == {EVENTS: 2, CONTROL: 1, DECISIONS: 1, "LW_LEDGER": 0}
    await until(
        "the fact as it was stored", lambda: [each for each in heard if "Nats-Sequence" in (each.headers or {})]
    )
    told = [(each.subject, each.headers["Nats-Sequence"]) for each in heard if "Nats-Sequence" in (each.headers or {})]
    assert told == [(FACT, "2")]
    assert len(heard) > len(told)  # what was sent to event subjects reaches others' ears; the missing header tells it


async def test_whoever_shares_an_account_with_a_stream_can_destroy_it_by_a_reply(bus: ServerUnderTest) -> None:
    """Why tools do not live where the mirrors are. Should the server refuse this one day, this test tells."""
    accounts = bus.data / "nats" / "accounts.conf"
    rogue = bus.provisioned.roster.member("obs-rogue")
    assert rogue is not None
    lines = accounts.read_text().splitlines()
    user = next(line for line in lines if rogue.public_key in line)
    lines.remove(user)
    at = next(number for number, line in enumerate(lines) if line.endswith("# mirror"))
    asks = f'["$JS.API.CONSUMER.MSG.NEXT.{EVENTS}.obs-rogue"]'
    lines.insert(
        at, f'{{nkey: {rogue.public_key}, permissions: {{publish: {asks}, subscribe: ["_INBOX_obs-rogue.>"]}}}}'
    )
    accounts.write_text("\n".join(lines) + "\n")
    await reload_servers(bus.data, bus.url)
    client = await bus.client("obs-rogue")
    for _ in range(2):  # the first brings the message, the second the empty word that there is none
        body = b'{"batch":1,"no_wait":true}'
        await client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{EVENTS}.obs-rogue", body, reply=f"$JS.API.STREAM.DELETE.{EVENTS}"
        )
    await client.flush()

    async def gone() -> bool:
        return (await mirrors(bus))[EVENTS] == -1

    await until("the mirror's end", gone)


# ---- bounds ----------------------------------------------------------------------------------------------------------


async def test_tools_have_so_many_connections_and_send_no_large_message(bus: ServerUnderTest) -> None:
    # held open from before
    clients = [await bus.client("obs-rogue") for _ in range(CONNECTIONS_MAX)]
    with pytest.raises(UnreachableError, match="obs-dash"):
        async with administer(bus.data, bus.url, "obs-dash"):
            pass
    async with administer(bus.data, bus.url, "n1"):
        pass
    await clients.pop().close()

    async def connects() -> bool:
        try:
            async with administer(bus.data, bus.url, "obs-dash"):
                return True
        except UnreachableError:
            return False

    await until("a free place", connects)
    for client in clients:
        await client.close()
    gone = asyncio.Event()

    async def closed() -> None:
        gone.set()

    rogue = await bus.client("obs-rogue", disconnected_cb=closed, allow_reconnect=False)
    rogue._max_payload = 1 << 20  # its client would refuse by itself
    await rogue.publish(f"{NEXT}.{EVENTS}.obs-rogue", b"x" * 5000)
    await asyncio.wait_for(gone.wait(), 5)


# ---- coming and going ------------------------------------------------------------------------------------------------


async def test_without_a_tool_there_is_no_mirror_and_the_last_one_takes_them_along(
    nats_server: ServerUnderTest,
) -> None:
    assert await mirrors(nats_server) == dict.fromkeys(MIRRORED, -1)
    await enrol(nats_server, "dash")
    assert await mirrors(nats_server) == dict.fromkeys(MIRRORED, 0)
    await provision_tools(nats_server.data, nats_server.url, CLUSTER, removed=["dash"])
    assert await mirrors(nats_server) == dict.fromkeys(MIRRORED, -1)
    core = (await nats_server.client("master")).jetstream()
    with pytest.raises(NotFoundError):
        await core.consumer_info(EVENTS, "mirror")


async def test_a_tool_that_is_removed_is_cut_off_and_the_others_are_not(bus: ServerUnderTest) -> None:
    gone: list[str] = []

    async def note() -> None:
        gone.append("rogue")

    rogue = await bus.client("obs-rogue", disconnected_cb=note, allow_reconnect=False)
    dash = await bus.client("obs-dash")
    await provision_tools(bus.data, bus.url, CLUSTER, removed=["rogue"])
    await until("the end of its connection", lambda: gone and rogue.is_closed)
    assert len(await take(dash, EVENTS, "obs-dash", 1)) == 1
    assert not list((bus.data / "keys").glob("obs-rogue*"))


async def test_provisioning_again_keeps_tools_and_their_places(bus: ServerUnderTest) -> None:
    assert len(await take(await bus.client("obs-dash"), EVENTS, "obs-dash", 1)) == 1
    done = await provision(bus.data, bus.url, CLUSTER, "strict", NODES, gateways={"main": ""})
    assert done.mirrors_made == ()
    await say(bus, 1, start=1)
    again = await take(await bus.client("obs-dash"), EVENTS, "obs-dash", 1)
    assert [message.metadata.sequence.stream for message in again] == [2]


async def test_the_mirror_of_a_stream_that_was_made_anew_is_made_anew(bus: ServerUnderTest) -> None:
    async with administer(bus.data, bus.url, "provisioner") as client:
        await client.jetstream().delete_stream(EVENTS)
    done = await provision(bus.data, bus.url, CLUSTER, "strict", NODES, gateways={"main": ""}, recreate=[EVENTS])
    assert done.mirrors_made == (EVENTS, f"{EVENTS}/obs-dash", f"{EVENTS}/obs-rogue")
    await say(bus, 1, start=7)
    messages = await take(await bus.client("obs-dash"), EVENTS, "obs-dash", 1)
    assert [(message.metadata.sequence.stream, message.data) for message in messages] == [(1, b'{"number":7}')]


@pytest.mark.long
async def test_there_is_a_bound_on_tools(nats_server: ServerUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.nats.enrolment.TOOLS_MAX", 1)
    await enrol(nats_server, "dash")
    await enrol(nats_server, "dash")
    with pytest.raises(BadConfigError, match="at most 1 tools"):
        await enrol(nats_server, "more")


@pytest.mark.long
async def test_the_preflight_warns_of_a_mirror_that_is_not_there(nats_server: ServerUnderTest) -> None:
    await enrol(nats_server, "dash")
    assert "mirror" not in await warned(nats_server)
    async with keeper(nats_server) as client:
        await client.request(f"$JS.API.STREAM.DELETE.{EVENTS}", b"", timeout=5)
    assert "mirror" in await warned(nats_server)
    await provision(nats_server.data, nats_server.url, CLUSTER, "strict", NODES, gateways={"main": ""})
    assert "mirror" not in await warned(nats_server)


async def warned(server: ServerUnderTest) -> set[str]:
    report = await preflight(server.data, server.url, CLUSTER, "strict")
    assert report.refusals == ()
    return {finding.code for finding in report.findings}


async def test_servers_with_an_accounts_file_of_before_are_provisioned_and_say_what_a_tool_needs(
    nats_server: ServerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = nats_server.data / "nats" / "accounts.conf"
    with monkeypatch.context() as before:
        before.setattr("adapters.nats.outside.render", lambda *_: "")
        before.setattr("adapters.nats.outside.core_exports", list)
        before.setattr("adapters.nats.mirrors._DEADLINE_S", 0.1)
        done = await provision(nats_server.data, nats_server.url, CLUSTER, "strict", NODES, gateways={"main": ""})
        assert (done.mirrors_made, MIRROR in accounts.read_text()) == ((), False)
        with pytest.raises(UnreachableError, match="as mirror"):
            await enrol(nats_server, "dash")
    await enrol(nats_server, "dash")  # the accounts have come, and are read without a restart
    assert await mirrors(nats_server) == dict.fromkeys(MIRRORED, 0)


@pytest.mark.long
async def test_three_servers_mirror_and_serve_a_tool_at_each(nats_cluster: ServerUnderTest) -> None:
    await enrol(nats_cluster, "dash")
    await say(nats_cluster, 3)
    for number, server in enumerate(nats_cluster.servers):
        async with administer(nats_cluster.data, server.url, "obs-dash") as client:
            messages = await take(client, EVENTS, "obs-dash", 1)
            assert [message.metadata.sequence.stream for message in messages] == [number + 1]
    await nats_cluster.stop(0)

    async def taken() -> list[int]:
        async with administer(nats_cluster.data, nats_cluster.servers[1].url, "obs-dash") as client:
            with suppress(ServiceUnavailableError, NatsError):  # a new leader is being chosen
                return [message.metadata.sequence.stream for message in await take(client, EVENTS, "obs-dash", 1)]
        return []

    async def said() -> bool:
        with suppress(NatsError):
            async with administer(nats_cluster.data, nats_cluster.servers[1].url, "n1") as node:
                return b'"seq":4' in (await node.request(FACT, b"{}", timeout=5)).data
        return False

    await until("a fourth fact", said, timeout_s=30)
    assert await until("the fourth fact at the tool", taken, timeout_s=30) == [4]
