"""Lending that no node drives: what the master's timers, and operators, do to real nodes over a real bus."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest

from adapters.nats.enrolment import key_path
from domain.control.settings import PREFIX
from domain.events import (
    BorrowStarted,
    CutOff,
    Event,
    Finished,
    Held,
    LeaseChecked,
    LeaseGranted,
    LeaseStalled,
    LeaseUpdated,
    LinkAdded,
    NodeEnrolled,
    OwnerPlanned,
    Registered,
    SettingChanged,
    SettingCleared,
    SettingStated,
    codec,
)
from domain.ids import ModelId, NodeId, link_id
from domain.subjects import EVENTS, speaker
from tests.support.cluster import ClusterUnderTest, cluster_on
from tests.support.family import pause
from tests.support.nats import ServerUnderTest
from tests.support.odd_server import Heard, OddServer, Reply, answer, odd_server
from tests.support.processes import ROOT, leaseway
from tests.support.waiting import until

pytestmark = pytest.mark.real
MODEL = ModelId("draw")
# of lane image: nobody has to know a window, so the first request of all may be lent
PATH, ASKED = "/v1/images/generations", {"model": MODEL, "prompt": "hello"}
ENDS = (NodeId("n1"), MODEL, NodeId("n2"), MODEL)
ON = LinkAdded(link=link_id(*ENDS), owner=ENDS[0], owner_model=MODEL, helper=ENDS[2], helper_model=MODEL)
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("LEASEWAY_")}


@contextlib.asynccontextmanager
async def node(
    server: ServerUnderTest, name: str, engine: OddServer, public_url: str = ""
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Run a node of depth 1 as a process of its own; give its URL, and the process."""
    config = server.data.parent / f"{name}.toml"
    key = key_path(server.data, name)
    config.write_text(
        f'[http]\nport = 0\npublic_url = "{public_url}"\n[bus]\nurl = "{server.url}"\ncredentials = "{key}"\n'
        f'[node]\nid = "{name}"\ndepth = 1\n[[node.models]]\nid = "{MODEL}"\nlocal_id = "local"\n'
        f'lane = "image"\nurl = "{engine.url}"\n'
    )
    flags = ("--config", str(config), "--data", str(config.with_suffix("")), "--node", name)
    process = await asyncio.create_subprocess_exec(
        *leaseway("node", *flags),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 30)
        yield json.loads(line)["url"], process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


class Two(msgspec.Struct, kw_only=True):
    """A master, an owner whose one engine place is taken, and a helper that is linked, idle and never measured."""

    cluster: ClusterUnderTest
    engine: OddServer
    """The owner's; it answers once `free` is set."""
    helping: OddServer
    helper: asyncio.subprocess.Process
    client: aiohttp.ClientSession
    first: "asyncio.Future[tuple[int, str]]"
    """The answer to the request in the owner's engine."""
    free: asyncio.Event

    async def ask(self) -> tuple[int, str]:
        """Return (status, who served it)."""
        async with self.client.post(PATH, json=ASKED) as got:
            await got.read()
            return got.status, got.headers["leaseway-served-by"]

    async def facts(self, name: str, kind: type[Event] | None = None) -> list[Event]:
        """Return what a node has said, all of it or of one kind."""
        stream = (await self.cluster.bus("reader", "master")).stream(EVENTS)
        found: list[Event] = []
        async for batch in stream.read(after=0, until=(await stream.bounds()).last):
            mine = (message.body for message in batch if speaker(message.subject)[1] == name)
            found += [codec.decode_event(codec.decode_envelope(body).data) for body in mine]
        return [fact for fact in found if kind is None or isinstance(fact, kind)]

    async def said(self, name: str, kind: type[Event]) -> list[Event]:
        """Return a node's facts of a kind once there is one."""

        async def look() -> list[Event]:
            return await self.facts(name, kind)

        found: list[Event] = await until(f"{kind.__name__} of {name}", look)
        return found


@contextlib.asynccontextmanager
async def two(server: ServerUnderTest, *, helper_url: str = "", **settings: int) -> AsyncIterator[Two]:
    free = asyncio.Event()

    async def when_free(heard: Heard, reply: Reply) -> None:
        await free.wait()
        await answer()(heard, reply)

    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(odd_server(when_free))
        helping = await stack.enter_async_context(odd_server())
        cluster = await stack.enter_async_context(cluster_on(server))
        await cluster.master()
        members = [
            NodeEnrolled(node=NodeId(m.name), public_key=m.public_key, url=m.url) for m in server.provisioned.nodes
        ]
        changed = [SettingChanged(name=PREFIX + name, value=value) for name, value in settings.items()]
        await cluster.decree(*members, *changed, ON)
        url, _ = await stack.enter_async_context(node(server, "n1", engine))
        _, helper = await stack.enter_async_context(node(server, "n2", helping, helper_url))
        client = await stack.enter_async_context(aiohttp.ClientSession(url))
        made = Two(
            cluster=cluster,
            engine=engine,
            helping=helping,
            helper=helper,
            client=client,
            first=asyncio.get_running_loop().create_future(),
            free=free,
        )
        await made.said("n2", Registered)
        made.first = asyncio.ensure_future(made.ask())
        await engine.arrived()
        try:
            yield made
        finally:
            free.set()
            made.first.cancel()


async def test_a_warm_helper_that_nobody_measured_gets_a_probe_once_it_has_idled_long_enough_and_nobody_says_a_word(
    nats_server: ServerUnderTest,
):
    async with two(nats_server, offload_probe_idle=6_000_000) as running:
        asking = asyncio.ensure_future(running.ask())
        await running.said("n1", Held)
        await until("a plan that waits for the probe", lambda: waits(running.cluster))
        said = await running.facts("n1")
        await running.cluster.decisions(LeaseGranted, timeout_s=15)
        plan, lease = await decided_together(running.cluster)
        assert (plan.trigger, lease.probe, lease.slots) == ("probe_due", True, 1)
        assert await asking == (200, "n2")
        first = (await running.facts("n1"))[len(said)]
        assert isinstance(first, LeaseUpdated), "the owner has said nothing between the plan that waits and the lease"


async def decided_together(cluster: ClusterUnderTest) -> tuple[OwnerPlanned, LeaseGranted]:
    """Return the first lease, and the plan of the same commit that gave it."""
    for made in await cluster.commits():
        leases = [decision for decision in made.decisions if isinstance(decision, LeaseGranted)]
        if leases:
            return next(each for each in made.decisions if isinstance(each, OwnerPlanned)), leases[0]
    raise AssertionError("there is a lease")


async def waits(cluster: ClusterUnderTest) -> bool:
    """Tell whether the newest plan found that the helper has to idle yet before its probe."""
    plans = [plan for plan in await cluster.decisions(OwnerPlanned) if isinstance(plan, OwnerPlanned)]
    return any(verdict.probe_in_us > 0 for verdict in plans[-1].verdicts)


async def test_a_running_node_follows_what_operators_set_over_the_bus_and_what_the_file_states_behind_it(
    nats_server: ServerUnderTest,
):
    async with two(nats_server, offload_probe_idle=3_600_000_000) as running:
        name = PREFIX + "scheduling_backend_depth"
        asking = [asyncio.ensure_future(running.ask()) for _ in range(3)]
        await running.said("n1", Held)
        await running.cluster.decree(SettingStated(name=name, value=2))
        await running.engine.arrived(2)
        await running.cluster.decree(SettingChanged(name=name, value=3))
        await running.engine.arrived(3)
        await running.cluster.decree(SettingCleared(name=name))
        await until("the file's value", lambda: depth_is(running, 2))
        running.free.set()
        assert await asyncio.gather(*asking) == [(200, "n1")] * 3


async def depth_is(running: Two, depth: int) -> bool:
    async with running.client.get("/cluster/v1/status") as got:
        return bool((await got.json())["depth"] == depth)


async def test_what_got_lost_on_its_way_to_a_helper_that_lives_is_asked_for_taken_back_and_answered_once_by_its_owner(
    nats_server: ServerUnderTest,
):
    settings = {"offload_probe_idle": 0, "offload_lent_stall_timeout": 10_000_000}
    async with black_hole() as hole, two(nats_server, helper_url=hole.url, **settings) as running:
        asking = asyncio.ensure_future(running.ask())
        async with asyncio.timeout(10):
            await hole.took.wait()
        began_s = asyncio.get_running_loop().time()
        (checked,) = await running.cluster.decisions(LeaseChecked, timeout_s=20)
        assert isinstance(checked, LeaseChecked)
        assert checked.quiet_us >= 10_000_000
        assert not asking.done()
        assert not hole.left.is_set()
        await running.cluster.decisions(LeaseStalled, timeout_s=20)
        (cut,) = await running.said("n1", CutOff)
        assert isinstance(cut, CutOff)
        assert cut.reason == "stalled"
        assert 20 <= asyncio.get_running_loop().time() - began_s < 30
        async with asyncio.timeout(2):
            await hole.left.wait()
        running.free.set()
        assert await asking == (200, "n1")
        assert await running.first == (200, "n1")
        assert (len(running.helping.heard), len(running.engine.heard)) == (0, 2)
        ends = await until("both ends", lambda: two_ends(running))
        assert len({fact.request for fact in ends}) == 2


async def test_what_a_frozen_helper_holds_is_taken_back_without_a_question_and_answered_once_by_its_owner(
    nats_server: ServerUnderTest,
):
    async with two(nats_server, offload_probe_idle=0, offload_lent_stall_timeout=10_000_000) as running:
        running.helping.script = running.helping.hang()
        asking = asyncio.ensure_future(running.ask())
        await running.helping.arrived()
        await running.said("n2", BorrowStarted)
        began_s = asyncio.get_running_loop().time()
        pause(running.helper.pid)
        (stalled,) = await running.cluster.decisions(LeaseStalled, timeout_s=30)
        assert isinstance(stalled, LeaseStalled)
        assert stalled.quiet_us >= 10_000_000
        decided = [each for made in await running.cluster.commits() for each in made.decisions]
        assert not any(isinstance(each, LeaseChecked) for each in decided), "who is offline hears no question"
        (cut,) = await running.said("n1", CutOff)
        assert isinstance(cut, CutOff)
        assert cut.reason == "stalled"
        assert asyncio.get_running_loop().time() - began_s < 30
        assert not asking.done()
        running.free.set()
        assert await asking == (200, "n1")
        assert await running.first == (200, "n1")
        assert (len(running.helping.heard), len(running.engine.heard)) == (1, 2)
        ends = await until("both ends", lambda: two_ends(running))
        assert len({fact.request for fact in ends}) == 2


@pytest.mark.long
async def test_without_a_master_what_a_frozen_helper_holds_comes_back_too_and_its_owner_answers_it_once(
    nats_server: ServerUnderTest,
):
    async with two(nats_server, offload_probe_idle=0, offload_lent_stall_timeout=10_000_000) as running:
        running.helping.script = running.helping.hang()
        asking = asyncio.ensure_future(running.ask())
        await running.helping.arrived()
        await running.said("n2", BorrowStarted)
        await running.cluster.end("master")
        pause(running.helper.pid)

        async def cuts() -> list[Event]:
            return await running.facts("n1", CutOff)

        (cut,) = await until("the owner to take it back", cuts, timeout_s=60, every_s=0.2)
        assert isinstance(cut, CutOff)
        assert cut.reason == "unwatched"
        running.free.set()
        assert await asking == (200, "n1")
        assert await running.first == (200, "n1")
        assert (len(running.helping.heard), len(running.engine.heard)) == (1, 2)


class Hole(msgspec.Struct, kw_only=True):
    """Somebody who takes a lend and lets nobody know of it."""

    url: str = ""
    took: asyncio.Event
    left: asyncio.Event
    """The owner has hung up."""


@contextlib.asynccontextmanager
async def black_hole() -> AsyncIterator[Hole]:
    hole = Hole(took=asyncio.Event(), left=asyncio.Event())

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while await reader.read(65536):
            hole.took.set()
        hole.left.set()
        writer.close()

    async with await asyncio.start_server(swallow, "127.0.0.1", 0) as server:
        hole.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield hole


async def two_ends(running: Two) -> list[Finished]:
    ends = [fact for fact in await running.facts("n1", Finished) if isinstance(fact, Finished)]
    return ends if len(ends) >= 2 else []
