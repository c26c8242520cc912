"""Nodes and a gateway as they run, on a real bus with a real engine; the test is operator and master."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from adapters.clock import SystemClock
from adapters.http.upstream import Answer, Parts, Upstream
from adapters.keys import Credentials, Signer
from adapters.nats.connection import Bus, connect
from adapters.nats.control import ControlDesk
from domain.control.view import ControlView
from domain.errors import NoAnswerError, NotConnectedError
from domain.events import Basis, Envelope, Event, Finished, Held, LeaseGranted, LinkAdded, Registered, codec
from domain.events.base import tag_of
from domain.ids import ModelId, NodeId, lease_id
from domain.ports import StoredMessage
from domain.subjects import CONTROL, DECISIONS, EVENTS, decision_subject, speaker
from services.config import BusConfig, Config, NodeConfig, NodeModel
from services.gateway.catalogue import Catalogue
from services.gateway.main import _Follower
from services.gateway.main import run as run_gateway
from services.node.main import run as run_node
from services.node.node import Node
from services.node.wires import Wires
from tests.support.engines import engine_command, tiny_engine
from tests.support.family import children
from tests.support.local_nodes import CHAT, GENERATION, code_of
from tests.support.nats import ServerUnderTest
from tests.support.odd_server import odd_server
from tests.support.waiting import until

pytestmark = pytest.mark.real
PATH = "/v1/chat/completions"
Fact = tuple[Envelope, Event]
Run = Callable[[Config, Callable[[str], None], asyncio.Event], Coroutine[Any, Any, None]]


class Running:
    """A process' `run` as a task of the test."""

    def __init__(self, run: Run, config: Config) -> None:
        self.url = ""
        self.stop = asyncio.Event()
        self._ready = asyncio.Event()
        self.task = asyncio.ensure_future(run(config, self._note, self.stop))

    def _note(self, url: str) -> None:
        self.url = url
        self._ready.set()

    async def ready(self) -> "Running":
        waiting = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait({self.task, waiting}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self.task.done():
            self.task.result()
        assert self.url, "the process says that it is ready"
        return self

    async def end(self) -> None:
        self.stop.set()
        async with asyncio.timeout(20):
            await self.task

    def kill(self) -> None:
        self.task.cancel()


class Desk:
    """Operator and master of a test."""

    def __init__(self, server: ServerUnderTest, bus: Bus, master: Credentials) -> None:
        self.server, self.bus, self.master = server, bus, master

    async def decide(self, event: LeaseGranted, version: int = 1) -> None:
        """Publish a signed grant."""
        envelope = Envelope(
            id=f"{GENERATION}-{version}-0",
            source="/local/master",
            type=tag_of(event),
            cluster="local",
            producer="master",
            data=codec.raw(event),
        )
        encoded = codec.encode(envelope)
        body = codec.with_tag(encoded, "sig", Signer(self.master.master_seed).sign(encoded[:-1]))
        await self.bus.stream(DECISIONS).publish(decision_subject("local", event), body)

    async def link(self, owner: str, helper: str) -> LinkAdded:
        """Enrol the nodes, and link `owner`'s model to `helper`'s."""
        return await asyncio.to_thread(self._link, NodeId(owner), NodeId(helper))

    def _link(self, owner: NodeId, helper: NodeId) -> LinkAdded:
        with ControlDesk(self.server.url, self.server.credentials("operator"), "local") as desk:
            for member in self.server.provisioned.nodes:
                desk.enroll_node(NodeId(member.name), member.public_key, member.url)
            added = desk.add_link(owner, ModelId(f"{owner}-chat"), helper, ModelId(f"{helper}-chat"))
        assert added is not None, "the link is new"
        return added

    async def facts(self, node: str = "") -> list[Fact]:
        """Return all facts on the stream, of one node or of all."""
        last = (await self.bus.stream(EVENTS).bounds()).last
        found: list[StoredMessage] = []
        async with contextlib.aclosing(self.bus.stream(EVENTS).read(after=0, until=last)) as batches:
            async for batch in batches:
                found += batch
        mine = [message for message in found if not node or speaker(message.subject)[1] == node]
        return [(envelope := codec.decode_envelope(each.body), codec.decode_event(envelope.data)) for each in mine]

    async def fact(self, node: str, kind: type[Event], request: str = "") -> Fact:
        """Return the first fact of a kind once it is on the stream."""

        async def look() -> Fact | None:
            for envelope, event in await self.facts(node):
                if isinstance(event, kind) and request in {"", getattr(event, "request", "")}:
                    return envelope, event
            return None

        found: Fact = await until(f"{kind.__name__} of {node}", look)
        return found


@pytest.fixture
async def desk(nats_server: ServerUnderTest) -> AsyncIterator[Desk]:
    master = nats_server.credentials("master")
    bus = await connect(nats_server.url, master, name="master")
    yield Desk(nats_server, bus, master)
    await bus.close()


def node_config(server: ServerUnderTest, name: str, *, relays: tuple[str, ...] = (), **model: object) -> Config:
    model = {"id": f"{name}-chat", "local_id": "local", **model}
    return Config(
        bus=BusConfig(url=server.url),
        node=NodeConfig(id=name, depth=1, relays=relays, models=(NodeModel(**model),)),  # type: ignore[arg-type]
        data=server.data,
    )


@contextlib.asynccontextmanager
async def running(run: Run, config: Config) -> AsyncIterator[Running]:
    process = Running(run, config)
    try:
        yield await process.ready()
    finally:
        process.kill()
        with contextlib.suppress(asyncio.CancelledError):
            await process.task


async def ask(url: str, model: str, **more: object) -> tuple[int, dict[str, object], dict[str, str]]:
    async with aiohttp.ClientSession(url) as client, client.post(PATH, json=CHAT | {"model": model} | more) as got:
        return got.status, await got.json(), dict(got.headers)


async def test_a_grant_from_the_bus_makes_the_owner_lend_to_a_real_engine_and_a_client_of_the_gateway_gets_the_answer(
    desk: Desk,
):
    server = desk.server
    async with (
        odd_server() as busy,
        tiny_engine(slots=1) as engine,
        running(run_node, node_config(server, "n1", url=busy.url)) as owner,
        running(run_node, node_config(server, "n2", url=engine.url, engine="llama.cpp", local_id="tiny")),
        running(run_gateway, Config(bus=BusConfig(url=server.url), data=server.data)) as gateway,
    ):
        busy.script = busy.hang()
        link = await desk.link("n1", "n2")
        running_one = asyncio.ensure_future(ask(owner.url, "n1-chat"))
        await busy.arrived()
        asking = asyncio.ensure_future(ask(gateway.url, "n1-chat"))
        envelope, held = await desk.fact("n1", Held)
        assert isinstance(held, Held)
        (helper,) = [event for _, event in await desk.facts("n2") if isinstance(event, Registered)]
        await desk.decide(granted(link, helper.url, Basis(NodeId("n1"), envelope.incarnation, int(envelope.pseq))))
        status, body, headers = await asking
        assert (status, body["model"]) == (200, "n1-chat")
        assert headers["leaseway-served-by"] == "n2"
        assert headers["leaseway-request"] == held.request
        await desk.fact("n1", Finished, held.request)
        said = [tag_of(event) for _, event in await desk.facts("n1") if getattr(event, "request", "") == held.request]
        assert said == ["queue.held", "lend.lent", "lend.answered", "queue.finished"]
        running_one.cancel()


class Walled(Upstream):
    """Connections of an owner that reach gateways only."""

    reachable = ""

    async def post_when_asked(self, url: str, body: bytes | Parts, headers: Mapping[str, str], **more: Any) -> Answer:
        if not url.startswith(self.reachable):
            raise NotConnectedError(f"{url}: no route")
        return await super().post_when_asked(url, body, headers, **more)


async def test_a_gateway_relays_for_a_node_of_the_roster_that_cannot_reach_its_helper(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    server = desk.server
    monkeypatch.setattr("services.node.lending.Upstream", Walled)
    async with (
        odd_server() as busy,
        odd_server() as helping,
        running(run_gateway, Config(bus=BusConfig(url=server.url), data=server.data)) as gateway,
        running(run_node, node_config(server, "n1", relays=(gateway.url,), url=busy.url)) as owner,
        running(run_node, node_config(server, "n2", url=helping.url)),
    ):
        monkeypatch.setattr(Walled, "reachable", gateway.url)
        busy.script = busy.hang()
        link = await desk.link("n1", "n2")
        running_one = asyncio.ensure_future(ask(owner.url, "n1-chat"))
        await busy.arrived()
        asking = asyncio.ensure_future(ask(owner.url, "n1-chat"))
        envelope, _ = await desk.fact("n1", Held)
        (helper,) = [event for _, event in await desk.facts("n2") if isinstance(event, Registered)]
        await desk.decide(granted(link, helper.url, Basis(NodeId("n1"), envelope.incarnation, int(envelope.pseq))))
        status, body, headers = await asking
        assert (status, body["model"], headers["leaseway-served-by"]) == (200, "n1-chat", "n2")
        assert len(helping.heard) == 1
        running_one.cancel()


def granted(link: LinkAdded, helper_url: str, basis: Basis) -> LeaseGranted:
    return LeaseGranted(
        link=link.link,
        owner=link.owner,
        owner_model=link.owner_model,
        helper=link.helper,
        helper_model=link.helper_model,
        helper_url=helper_url,
        lease=lease_id(GENERATION, 1, 0),
        slots=1,
        ttl_us=30_000_000,
        basis=basis,
    )


async def test_a_node_that_starts_again_states_work_in_the_unit_that_it_measured_before(desk: Desk):
    async with odd_server() as engine:
        await desk.link("n1", "n2")
        async with running(run_node, node_config(desk.server, "n1", url=engine.url)) as node:
            for _ in range(2):
                assert (await ask(node.url, "n1-chat"))[0] == 200
            await node.end()
        _, ended = await desk.fact("n1", Finished)
        engine.script = engine.hang()
        async with running(run_node, node_config(desk.server, "n1", url=engine.url)) as node:
            asking = asyncio.ensure_future(ask(node.url, "n1-chat"))
            held = asyncio.ensure_future(ask(node.url, "n1-chat"))
            _, waits = await desk.fact("n1", Held)
            assert isinstance(ended, Finished)
            assert isinstance(waits, Held)
            assert waits.work == ended.work
            assert waits.est_tokens > 0
            for one in (asking, held):
                one.cancel()


async def test_a_node_says_registered_first_and_numbers_its_facts_without_a_gap(desk: Desk):
    async with (
        odd_server() as engine,
        running(run_node, node_config(desk.server, "n1", url=engine.url, context=512)) as node,
    ):
        for _ in range(3):
            assert (await ask(node.url, "n1-chat"))[0] == 200
        await node.end()
    facts = await desk.facts("n1")
    assert [int(envelope.pseq) for envelope, _ in facts] == list(range(1, len(facts) + 1))
    first = facts[0][1]
    assert isinstance(first, Registered)
    assert first.url == node.url
    assert [(info.id, info.context, info.ready) for info in first.models] == [("n1-chat", 512, True)]
    tags = [tag_of(event) for _, event in facts]
    # in no link: one terminal fact a request, nothing else
    assert [tag for tag in tags if tag.startswith("queue.")] == ["queue.finished"] * 3
    assert tags[-2:] == ["status.draining", "status.stopped"]


async def test_a_node_serves_without_a_bus_and_says_all_of_it_later_and_then_a_snapshot(desk: Desk):
    await desk.server.stop()
    async with odd_server() as engine, running(run_node, node_config(desk.server, "n1", url=engine.url)) as node:
        for _ in range(5):
            assert (await ask(node.url, "n1-chat"))[0] == 200
        await desk.server.restart()

        async def all_said() -> bool:
            tags = [tag_of(event) for _, event in await desk.facts("n1")]
            return tags.count("queue.finished") == 5 and tags[-1] == "status.snapshot"

        await until("all facts", all_said, timeout_s=20)
        tags = [tag_of(event) for _, event in await desk.facts("n1")]
        assert tags[0] == "status.registered"


async def test_a_gateway_lists_what_nodes_hold_and_remembers_it_without_a_bus(desk: Desk):
    config = Config(bus=BusConfig(url=desk.server.url), data=desk.server.data)
    async with odd_server() as engine, running(run_node, node_config(desk.server, "n1", url=engine.url)):
        async with running(run_gateway, config) as gateway:

            async def listed() -> bool:
                async with aiohttp.ClientSession(gateway.url) as client, client.get("/v1/models") as got:
                    return [entry["id"] for entry in (await got.json())["data"]] == ["n1-chat"]

            await until("the model to be listed", listed)
            await until("the catalogue to be kept", (desk.server.data / "cluster" / "catalogue.json").exists)
            await gateway.end()
        await desk.server.stop()
        async with running(run_gateway, config) as gateway:
            assert (await ask(gateway.url, "n1-chat"))[:1] == (200,)
            status, body, _ = await ask(gateway.url, "other")
            assert (status, code_of(body)) == (404, "model_not_found")


async def test_a_gateway_that_has_read_nothing_yet_calls_no_model_unknown(desk: Desk):
    config = Config(bus=BusConfig(url=desk.server.url), data=desk.server.data)
    async with odd_server() as engine, running(run_node, node_config(desk.server, "n1", url=engine.url)):
        await desk.fact("n1", Registered)
        await desk.server.stop()
        async with running(run_gateway, config) as gateway:
            status, body, headers = await ask(gateway.url, "n1-chat")
            assert (status, code_of(body)) == (503, "model_unavailable")
            assert headers["Retry-After"]
            await desk.server.restart()
            await until("the model to be served", lambda: is_served(gateway.url, 200))
            status, body, _ = await ask(gateway.url, "other")
            assert (status, code_of(body)) == (404, "model_not_found")


async def is_served(url: str, status: int) -> bool:
    return (await ask(url, "n1-chat"))[0] == status


async def test_a_model_whose_only_node_stopped_is_known_and_unavailable_and_comes_back(desk: Desk):
    config = Config(bus=BusConfig(url=desk.server.url), data=desk.server.data)
    async with odd_server() as engine, running(run_gateway, config) as gateway:
        async with running(run_node, node_config(desk.server, "n1", url=engine.url)) as node:
            await until("the model to be served", lambda: is_served(gateway.url, 200))
            await node.end()
        await until("the model to be unavailable", lambda: is_served(gateway.url, 503))
        async with (
            aiohttp.ClientSession(gateway.url) as client,
            client.post(PATH, json=CHAT | {"model": "n1-chat"}) as got,
        ):
            assert got.headers["Retry-After"]
            assert (await got.json())["error"]["code"] == "model_unavailable"
        async with running(run_node, node_config(desk.server, "n1", url=engine.url)):
            await until("the model to be served again", lambda: is_served(gateway.url, 200))


async def test_an_engine_of_the_node_s_own_is_started_with_a_key_and_started_again_when_it_is_killed(desk: Desk):
    command = (*engine_command(slots=1, alias="local", port="{port}"), "--api-key-env", "LEASEWAY_ENGINE_KEY")
    config = node_config(desk.server, "n1", command=command, engine="llama.cpp")
    async with running(run_node, config) as node:
        status, body, _ = await ask(node.url, "n1-chat")
        assert (status, body["model"]) == (200, "n1-chat")
        (first,) = [event for _, event in await desk.facts("n1") if isinstance(event, Registered)]
        assert first.models[0].context == 4096
        (pid,) = [pid for pid, words in children(os.getpid()) if "LEASEWAY_ENGINE_KEY" in words]
        os.kill(pid, signal.SIGKILL)
        await until("the engine to be back", lambda: is_served(node.url, 200), timeout_s=20)
        tags = [tag_of(event) for _, event in await desk.facts("n1")]
        assert [tag for tag in tags if tag.startswith("model.")] == [
            *("model.load_started", "model.loaded", "model.load_failed", "model.load_started", "model.loaded"),
        ]


async def test_a_node_knows_whom_it_may_help_once_all_of_control_has_come_and_hears_decisions_only_then(desk: Desk):
    server = desk.server
    link = await desk.link("n1", "n2")
    credentials, clock = server.credentials("n2"), SystemClock()
    config = node_config(server, "n2", url="http://127.0.0.1:1")
    node = Node(config, credentials, clock)
    bus = await connect(server.url, credentials, name="n2")
    wires = Wires(node, bus, config, credentials, clock)
    heard: list[bool] = []
    node.decided = lambda *_: heard.append(node.desk.knows_control())  # type: ignore[method-assign]
    assert not node.desk.knows_control()
    node.register(wires.producer.state, "http://127.0.0.1:1")
    await desk.decide(granted(link, "http://127.0.0.1:1", Basis(NodeId("n1"), wires.incarnation, 1)))
    come, slow = wires._control.messages, asyncio.Event()

    async def slowly() -> AsyncIterator[StoredMessage]:
        await slow.wait()
        async for message in come():
            yield message

    wires._control.messages = slowly  # type: ignore[assignment,method-assign]
    asyncio.get_running_loop().call_later(0.8, slow.set)
    tasks = [asyncio.ensure_future(each) for each in wires.tasks()]
    try:
        await until("a decision", lambda: heard)
        assert all(heard)
        assert node.view.link(link.link) == link
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await node.close()
        await bus.close()


async def test_control_that_is_followed_again_from_its_beginning_takes_nothing_back(desk: Desk):
    server = desk.server
    credentials, clock = server.credentials("n2"), SystemClock()
    config = node_config(server, "n2", url="http://127.0.0.1:1")
    node = Node(config, credentials, clock)
    bus = await connect(server.url, credentials, name="n2")
    wires = Wires(node, bus, config, credentials, clock)
    link = await desk.link("n1", "n2")
    ends = (link.owner, link.owner_model, link.helper, link.helper_model)

    def again() -> None:
        with ControlDesk(server.url, server.credentials("operator"), "local") as control:
            control.remove_link(*ends)
            control.add_link(*ends, load_if_unloaded=True)

    await asyncio.to_thread(again)
    come, links = wires._control.messages, list[bool | None]()

    async def breaks_off() -> AsyncIterator[StoredMessage]:
        async for message in come():
            yield message
            if links[-1:] == [True]:
                raise NoAnswerError("the consumer is gone")

    def changed() -> None:
        known = node.view.link(link.link)
        links.append(known.load_if_unloaded if known is not None else None)

    wires._control.messages = breaks_off  # type: ignore[assignment,method-assign]
    node.control_changed = changed  # type: ignore[method-assign]
    following = asyncio.ensure_future(wires._follow_control())
    try:
        await until("the link as it was added last", lambda: links[-1:] == [True])
        seen = len(links)
        await asyncio.to_thread(control_set, server, {"offload_streams": 0})
        await until("what is decided after that", lambda: node.view.setting("offload_streams") == 0)
        assert links[seen:] == [True]
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await node.close()
        await bus.close()


def control_set(server: ServerUnderTest, values: dict[str, int]) -> None:
    """Override settings as an operator does."""
    with ControlDesk(server.url, server.credentials("operator"), "local") as control:
        control.set_settings(values)


async def test_a_gateway_that_follows_again_from_the_beginning_takes_nothing_twice(desk: Desk, tmp_path: Path):
    await desk.link("n1", "n2")
    stored = (await desk.bus.stream(CONTROL).bounds()).last
    credentials = desk.server.credentials("gateway-main")
    bus = await connect(desk.server.url, credentials, name="gateway-main")
    taken: list[int] = []

    def take(message: StoredMessage) -> None:
        taken.append(message.seq)
        if message.seq == stored:
            raise NoAnswerError("the consumer is gone")

    follower = _Follower(bus, credentials, Catalogue(tmp_path / "catalogue.json"), ControlView())
    following = asyncio.ensure_future(follower._follow(CONTROL, take))
    try:
        await until("all of control", lambda: stored in taken)
        await asyncio.to_thread(control_set, desk.server, {"offload_streams": 0})
        await until("what is decided after that", lambda: taken[-1] > stored)
        assert taken == list(range(1, stored + 2))
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await bus.close()
