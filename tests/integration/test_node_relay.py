"""An owner that cannot reach its helper lends through a relay: another node, or a gateway. The test is the master."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from adapters.clock import SystemClock
from adapters.http.server import HttpServer
from adapters.http.upstream import CONTINUE_S, Answer, Parts, Upstream
from adapters.keys import Signer, new_nkey
from domain.control.view import ControlView
from domain.errors import NotConnectedError
from domain.events import CutOff, LeaseCleared, NodeEnrolled, RelayRefused
from domain.ids import LeaseId, ModelId
from services import lend_head
from services.config import Limits
from services.gateway.catalogue import Catalogue
from services.gateway.forwarding import Forwarder
from services.gateway.surface import Surface
from services.lend_check import LendCheck
from services.node.routes import SHUT_US, Routes
from services.relaying import Relay
from tests.support.lending_pair import PATH, Pair, pair
from tests.support.local_nodes import CHAT, LocalNode, grant_of, local_node, model_at, publish, signed
from tests.support.odd_server import DONE, Heard, Reply, answer, event, odd_server, stream
from tests.support.waiting import until


class StoodClock:
    """A clock that goes on when the test says so."""

    now_us = 0

    def monotonic_us(self) -> int:
        return self.now_us

    wall_us = monotonic_us


class Wall(Upstream):
    """The way to `url`, shut as a firewall shuts it; to everywhere if none is said. Whatever else is asked is asked."""

    def __init__(self, url: str = "") -> None:
        super().__init__(connections=4, per_party=True, keep_alive=False)
        self._url, self.tried = url, 0

    async def post_when_asked(
        self,
        url: str,
        body: bytes | Parts,
        headers: Mapping[str, str],
        *,
        asked_for: Callable[[], None],
        continue_s: float = CONTINUE_S,
    ) -> Answer:
        if url.startswith(self._url):
            self.tried += 1
            raise NotConnectedError(f"{url}: no route")
        return await super().post_when_asked(url, body, headers, asked_for=asked_for, continue_s=continue_s)


def wall_off(owner: LocalNode, url: str) -> Wall:
    """Let the owner reach `url` no more."""
    wall = owner.node.lender._upstream = Wall(url)
    return wall


def acquaint(relay: LocalNode, *nodes: LocalNode) -> None:
    """Let the relay know the roster, as LW_CONTROL would."""
    for node in nodes:
        relay.node.view.apply(NodeEnrolled(node=node.node.id, public_key=node.public_key, url=node.url))


@contextlib.asynccontextmanager
async def relayed(*, before: tuple[str, ...] = ()) -> AsyncIterator[tuple[Pair, LocalNode, Wall]]:
    """Give a pair with a wall between, and a third node that the owner asks to relay, after those `before` it."""
    async with (
        odd_server() as engine,
        local_node([model_at(engine.url)], name="n3") as relay,
        pair(relays=(*before, relay.url)) as two,
    ):
        acquaint(relay, two.owner, two.helper)
        yield two, relay, wall_off(two.owner, two.helper.url)


def url_of(server: asyncio.Server) -> str:
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def reason_of(two: Pair) -> str:
    """Return why the first lend could not be passed on."""
    (fact,) = await two.owner.said("lend.relay_refused")
    assert isinstance(fact, RelayRefused)
    return fact.reason


async def test_a_lend_goes_through_another_node_when_the_helper_cannot_be_reached():
    async with relayed() as (two, relay, wall):
        asking = await two.held()
        two.grant()
        got = await asking
        assert (got.status, (await got.json())["model"], got.headers["leaseway-served-by"]) == (200, "public", "n2")
        assert two.owner.tags("lend") == ["lend.lease_updated", "lend.lent", "lend.answered"]
        assert two.helper.tags("borrow") == ["borrow.accepted", "borrow.started", "borrow.finished"]
        assert relay.tags("lend", "borrow", "queue") == []
        assert (wall.tried, len(two.helping.heard)) == (1, 1)


async def test_the_next_lend_does_not_wait_for_the_shut_way_again():
    async with relayed() as (two, _, wall):
        asking = await two.held()
        two.grant()
        assert (await asking).headers["leaseway-served-by"] == "n2"
        assert (await two.ask()).headers["leaseway-served-by"] == "n2"
        assert wall.tried == 1


async def test_a_shut_way_is_forgotten_once_its_time_is_over():
    clock = StoodClock()
    routes = Routes(("http://relay:1",), clock)
    for port in range(5):
        routes.shut(f"http://old:{port}")
    assert [way.relayed for way in routes.to("http://old:4")] == [True]
    clock.now_us += SHUT_US
    routes.shut("http://new:1")
    assert list(routes._shut_until_us) == ["http://new:1"]
    assert [way.relayed for way in routes.to("http://old:4")] == [False, True]


async def test_a_stream_comes_through_a_relay_event_by_event_and_ends_in_order():
    sent = [event(f"part {number}").replace(b"local", b"x") for number in range(20)]
    async with relayed() as (two, _, _):
        two.helping.script = stream([*sent, DONE])
        asking = await two.held(stream=True)
        two.grant()
        got = await asking
        assert await got.read() == b"".join([*sent, DONE]).replace(b'"model": "x"', b'"model": "public"')
        assert got.headers["leaseway-served-by"] == "n2"


async def test_a_client_that_leaves_cancels_at_the_helpers_engine_through_the_relay_within_a_second():
    async with relayed() as (two, _, _):
        two.helping.script = two.helping.hang()
        asking = await two.held()
        two.grant()
        await two.helping.arrived()
        asking.cancel()
        async with asyncio.timeout(1):
            await two.helping.cancelled.wait()
        await two.helper.said("borrow.finished")
        assert two.owner.counts()[2] == 0


async def test_a_helper_that_dies_under_a_relayed_request_is_cut_at_the_owner_and_nothing_is_sent_twice():
    async with relayed() as (two, _, _):
        two.helping.script = two.helping.hang()
        two.engine.script = answer()
        asking = await two.held()
        two.grant()
        await two.helping.arrived()
        await two.helper.node.server.stop()
        (fact,) = await two.owner.said("lend.cut_off")
        assert isinstance(fact, CutOff)
        assert fact.reason == "helper_failed"
        two.busy[0].cancel()
        assert (await asking).headers["leaseway-served-by"] == "n1"
        assert len(two.helping.heard) == 1


async def test_a_relayed_stream_that_is_cut_at_the_helper_ends_with_an_error_event():
    async with relayed() as (two, _, _):
        two.helping.script = stream([event("one")], die=True)
        asking = await two.held(stream=True)
        two.grant()
        body = (await (await asking).read()).decode()
        assert body.count('"error"') == 1
        assert "[DONE]" not in body


async def test_what_the_helper_says_instead_of_100_comes_back_through_the_relay():
    async with relayed() as (two, _, _):
        two.helping.health_status = 500
        await until(
            "the helper's engine to be down", lambda: not two.helper.node.models[ModelId("theirs")].serving.ready
        )
        await two.held()
        two.grant()
        await two.owner.said("lend.returned")
        assert two.helping.heard == []


async def test_a_helper_that_the_relay_cannot_reach_either_is_unreachable_and_the_owner_runs_the_request():
    async with relayed() as (two, relay, _):
        two.engine.script = answer()
        relay.node.relay._upstream = Wall()
        asking = await two.held()
        two.grant()
        assert await reason_of(two) == "helper_unreachable"
        two.busy[0].cancel()
        assert (await asking).headers["leaseway-served-by"] == "n1"
        assert two.helping.heard == []


async def test_the_second_relay_is_asked_when_the_first_is_gone():
    async with relayed(before=("http://127.0.0.1:9",)) as (two, _, _):
        asking = await two.held()
        two.grant()
        assert (await asking).headers["leaseway-served-by"] == "n2"


async def test_without_a_relay_a_helper_behind_a_wall_is_unreachable():
    async with pair() as two:
        wall_off(two.owner, two.helper.url)
        await two.held()
        two.grant()
        assert await reason_of(two) == "helper_unreachable"


async def test_a_helper_url_that_only_its_own_machine_understands_is_asked_for_through_relays_alone():
    async with relayed() as (two, _, wall):
        two.owner.node.lender.known_at("http://10.0.0.5:8000")
        asking = await two.held()
        two.grant()
        assert (await asking).headers["leaseway-served-by"] == "n2"
        assert wall.tried == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"])
async def test_without_a_relay_such_a_helper_is_unreachable_and_nobody_else_is_asked_in_its_place(host: str):
    async with odd_server() as stranger, pair() as two:
        two.owner.node.lender.known_at("http://10.0.0.5:8000")
        await two.held()
        two.grant(url=stranger.url.replace("127.0.0.1", host))
        assert await reason_of(two) == "helper_unreachable"
        assert stranger.heard == []


async def test_owner_and_relay_bear_any_silence_of_a_helper_that_is_there_and_the_own_engine_is_bounded():
    async with relayed() as (two, relay, _):
        two.helping.script = two.helping.hang()
        asking = await two.held()
        two.grant()
        await two.helping.arrived()
        lender, served = two.owner.node.lender, two.owner.node.models[ModelId("public")]
        for patient in (lender._upstream, relay.node.relay._upstream):
            assert patient._session is not None
            assert patient._session.timeout.sock_read is None
            (connection,) = patient._session.connector._acquired  # type: ignore[union-attr]
            raw = connection.transport.get_extra_info("socket")  # type: ignore[union-attr]
            assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert served.life._work._timeout.sock_read == 600
        asking.cancel()


async def test_a_helper_that_hangs_up_on_the_relay_before_the_100_took_nothing():
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with relayed() as (two, _, _), await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        url = url_of(server)
        wall_off(two.owner, url)
        await two.held()
        two.grant(url=url)
        assert await reason_of(two) == "forward_failed"


async def test_whoever_answers_and_is_no_relay_has_taken_nothing():
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as stranger, pair(relays=(url_of(stranger),)) as two:
        wall_off(two.owner, two.helper.url)
        await two.held()
        two.grant()
        assert await reason_of(two) == "forward_failed"


async def test_the_relay_asks_for_the_body_only_when_the_helper_has_asked_for_it():
    seen: list[str] = []
    asked = asyncio.Event()

    async def helper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Expect: 100-continue" in head
        await asked.wait()
        seen.append("100")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(1)
        seen.append("body")
        writer.transport.abort()

    async with relayed() as (two, _, _), await asyncio.start_server(helper, "127.0.0.1", 0) as server:
        url = url_of(server)
        wall_off(two.owner, url)
        serving = two.owner.node.models[ModelId("public")].serving
        accepted = serving.lend_accepted
        serving.lend_accepted = lambda *ids: (seen.append("accepted"), accepted(*ids))  # type: ignore[assignment,func-returns-value]
        await two.held()
        two.grant(url=url)
        await two.owner.said("lend.lent")
        assert seen == []
        asked.set()
        await two.owner.said("lend.cut_off")
        assert seen == ["100", "accepted", "body"]


async def test_a_relay_that_drains_lets_end_what_it_passes_on():
    free = asyncio.Event()

    async def when_free(heard: Heard, reply: Reply) -> None:
        await free.wait()
        await answer()(heard, reply)

    async with relayed() as (two, relay, _):
        two.helping.script = when_free
        asking = await two.held()
        two.grant()
        await two.helping.arrived()
        draining = asyncio.ensure_future(relay.node.drain(10))
        done, _ = await asyncio.wait({draining}, timeout=0.2)
        assert not done
        free.set()
        assert (await asking).headers["leaseway-served-by"] == "n2"
        assert await draining


# -- what a relay does not pass on ------------------------------------------------------------------------------------------


async def told(two: Pair, relay: LocalNode, grant: bytes, signer: Signer | None = None) -> tuple[int, str]:
    """Return (status, code) of the relay's answer to a lend of the owner's that shows `grant`."""
    body = msgspec.json.encode({**CHAT, "model": "theirs"})
    head = lend_head.LendHead(
        request=f"req_{7:032x}",  # type: ignore[arg-type]
        lease=LeaseId("0001beef-1-0"),
        link=two.link.link,
        owner=two.link.owner,
        helper=two.link.helper,
        model=two.link.helper_model,
        path=PATH,
        work=1,
        remaining_ms=1000,
        size_bytes=len(body),
        body_sha256=lend_head.body_hash(body),
    )
    upstream = Upstream(connections=1, keep_alive=False)
    headers = {
        "Content-Type": "application/json",
        **lend_head.sealed(head, signer or two.owner.node.lender._signer, grant),
    }
    try:
        got = await upstream.post_when_asked(
            relay.url + lend_head.RELAY_PREFIX + PATH, body, headers, asked_for=lambda: None
        )
        document = msgspec.json.decode(await got.read(10_000))
    finally:
        await upstream.close()
    return got.status, document["error"]["code"] if "error" in document else "answered"


async def test_a_relay_passes_on_only_what_a_node_signed_under_a_grant_that_the_master_signed():
    async with relayed() as (two, relay, _):
        grant = signed(grant_of(two.link, two.owner, two.helper.url))
        assert await told(two, relay, grant, Signer(new_nkey()[0])) == (403, "bad_signature")
        forged = signed(grant_of(two.link, two.owner, two.helper.url), seed=new_nkey()[0])
        assert await told(two, relay, forged) == (403, "bad_signature")
        elsewhere = signed(grant_of(two.link, two.owner, "http://127.0.0.1:9"), seed=new_nkey()[0])
        assert await told(two, relay, elsewhere) == (403, "bad_signature")
        assert two.helping.heard == []
        assert await told(two, relay, grant) == (200, "answered")


async def test_a_relay_that_knows_of_the_leases_end_refuses_and_so_it_does_when_it_is_shown_that_end():
    async with relayed() as (two, relay, _):
        granted = grant_of(two.link, two.owner, two.helper.url)
        cleared = msgspec.convert({**msgspec.to_builtins(granted), "event": "lease.cleared", "slots": 0}, LeaseCleared)
        assert await told(two, relay, signed(cleared, version=2)) == (403, "no_live_lease")
        assert publish(signed(cleared, version=2), relay)
        assert await told(two, relay, signed(granted)) == (403, "no_live_lease")
        assert two.helping.heard == []


@pytest.mark.parametrize("more", ["/v1?x=", "#", "@127.0.0.1:9", "/../x?"])
async def test_a_relay_posts_to_no_other_path_than_a_nodes_whatever_a_helper_says_of_its_url(more: str):
    async with odd_server() as inner, relayed() as (two, relay, _):
        grant = signed(grant_of(two.link, two.owner, inner.url + more))
        assert await told(two, relay, grant) == (502, "forward_failed")
        assert inner.heard == []


async def test_a_gateway_relays_too(tmp_path: Path):
    async with pair() as two:
        view, limits = ControlView(), Limits()
        view.apply(NodeEnrolled(node=two.owner.node.id, public_key=two.owner.public_key, url=two.owner.url))
        check = LendCheck(view, two.owner.node.reader, limits.body_bytes)
        relay = Relay("gateway-main", check, lambda _: False, connect_s=2)
        forwarder = Forwarder("gateway-main", Catalogue(tmp_path / "c.json"), limits, SystemClock())
        server = HttpServer(Surface(forwarder, relay).serve, connections_max=10, served_by="gateway-main")
        url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
        two.owner.node.lender._routes = Routes((url,), SystemClock())
        wall_off(two.owner, two.helper.url)
        asking = await two.held()
        two.grant()
        assert (await asking).headers["leaseway-served-by"] == "n2"
        await server.stop()
        await relay.close()
        await forwarder.close()
