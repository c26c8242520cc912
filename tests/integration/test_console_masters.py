"""What the console says where several masters run, where none decides, and where ClickHouse is away: of real ones."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp.test_utils import TestServer

from adapters.log.witness import FileWitnessBook
from adapters.nats.enrolment import key_path
from domain.ids import Generation, ModelId, NodeId
from domain.master.state import State
from domain.ports import Witnessed
from projections.why.model import model_story
from services.config import BusConfig, ClickhouseConfig, Config
from services.console.peers import STATE
from services.master.http import application
from services.projector import main as projector
from tests.support.cluster import ClusterUnderTest, cluster_on
from tests.support.console_pages import Seen, look
from tests.support.console_peers import NOBODY, Peer, console, serving, state, well
from tests.support.history import registered
from tests.support.nats import ServerUnderTest
from tests.support.waiting import until

pytestmark = pytest.mark.real
CALM = "no new leases; every node serves its own requests"


@pytest.fixture
async def cluster(nats_server: ServerUnderTest) -> AsyncIterator[ClusterUnderTest]:
    async with cluster_on(nats_server) as made:
        yield made


async def seen_of(data: Path, path: str = "/", **urls: str) -> Seen:
    """Return a page of a console that has just started."""
    async with console(data, **urls) as url, aiohttp.ClientSession() as client:
        return await look(client, url + path)


def states(seen: Seen) -> dict[str, str]:
    """Return url -> state of each master."""
    return {row["url"]: row["state"] for row in seen.rows("process") if row["process"] == "master"}


async def test_of_several_masters_the_one_that_decides_is_shown_and_one_that_doubts_is_an_alarm(
    cluster: ClusterUnderTest, tmp_path: Path
):
    await FileWitnessBook(tmp_path / "far" / "checkpoint-far.json").write(
        Witnessed(generation=Generation("0007abcd"), version=9, digest="ab" * 16)
    )
    active, _ = await cluster.master("one")
    await until("one decides", lambda: active.mode == "active")
    await cluster.state("n1", registered())
    await until("its node is known", lambda: active.state.nodes)
    standby, _ = await cluster.master("two")
    doubting, _ = await cluster.master("far", data=tmp_path / "far")
    await until("two stands by", lambda: standby.mode == "standby")
    await until("far doubts", lambda: doubting.mode == "safe_mode")
    async with AsyncExitStack() as stack:
        urls = []
        for loop in (doubting, standby, active):
            server = await stack.enter_async_context(TestServer(application(loop, Path("none"))))
            urls.append(str(server.make_url("")).rstrip("/"))
        seen = await seen_of(tmp_path, master=", ".join(urls))
        assert states(seen) == dict(zip(urls, ("safe mode", "standby", "active"), strict=True))
        assert [row["node"] for row in seen.rows("node")] == ["n1"]
        alarm = seen.banners[0]
        assert (alarm.weight, alarm.text.startswith("SAFE MODE of one master")) == ("alarm", True)
        assert " ".join(doubting.doubt.split()) in alarm.text
        assert urls[0] in alarm.text
        assert "--new-generation" not in seen.raw, "it would take away what the other one decides on"
        seen = await seen_of(tmp_path, master=",".join(urls[:2]))
        assert "SAFE MODE: nothing is lent" in seen.banners[0].text
        assert "leaseway provision --new-generation --reason" in seen.banners[0].text
        seen = await seen_of(tmp_path, master=urls[1])
        assert (seen.banners[0].weight, seen.banners[0].text) == ("alarm", f"No master decides, one stands by: {CALM}.")
        assert "as told by a master that is standby" in " ".join(seen.text["p"].split()), "what it knows is shown"
        seen = await seen_of(tmp_path, master=f"{NOBODY},{urls[2]}")
        assert [banner.weight for banner in seen.banners] == ["notice"] * 3
        assert f"master {NOBODY}: cannot be reached" in seen.banners[2].text
        assert "Another master decides." in seen.banners[2].text


async def test_a_master_without_a_bus_is_an_alarm_until_it_has_one_again(
    cluster: ClusterUnderTest, nats_server: ServerUnderTest, tmp_path: Path
):
    active, _ = await cluster.master("one")
    await until("it decides", lambda: active.mode == "active")
    bus = await cluster.bus("one")
    app = application(active, Path("none"), connected=lambda: bus.connected)
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        assert [banner.weight for banner in (await seen_of(tmp_path, master=url)).banners] == ["notice"] * 2
        nats_server.kill()
        await until("it knows that the bus is gone", lambda: not bus.connected)
        alarm = (await seen_of(tmp_path, "/decisions", master=url)).banners[0]
        assert (alarm.weight, alarm.text.split(":")[0]) == ("alarm", "The master has no connection to the bus")
        await nats_server.restart()
        await until("it is there again", lambda: bus.connected)
        assert [banner.weight for banner in (await seen_of(tmp_path, master=url)).banners] == ["notice"] * 2


@asynccontextmanager
async def projecting(server: ServerUnderTest, data: Path, dsn: str) -> AsyncIterator[str]:
    """Run a projector whose ClickHouse is at `dsn`; yield its URL."""
    config = Config(
        bus=BusConfig(url=server.url, credentials=key_path(server.data, "projector")),
        data=data,
        clickhouse=ClickhouseConfig(dsn=dsn),
    )
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    running = asyncio.create_task(projector.run(config, ready.set_result, stop))
    try:
        await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
        yield ready.result()
    finally:
        stop.set()
        await running


async def test_with_clickhouse_away_every_page_says_so_and_shows_what_does_not_need_it(
    nats_server: ServerUnderTest, tmp_path: Path
):
    async with (
        projecting(nats_server, tmp_path, "http://u:p@127.0.0.1:9/away") as url,
        serving(Peer({"/health": well(), STATE: state()})) as master,
        serving(Peer({"/health": {"status": "ok"}})) as gateway,
        console(tmp_path, master=master.url, projector=url, gateway=gateway.url) as at,
        aiohttp.ClientSession() as client,
    ):
        for path, status in (
            ("/", 200),
            ("/decisions", 503),
            ("/telemetry", 503),
            ("/why", 200),
            ("/at", 200),
        ):
            seen = await look(client, at + path)
            assert (path, seen.status, seen.banners[0].weight) == (path, status, "notice")
            assert seen.banners[0].text.startswith("projector: clickhouse away"), seen.banners
            assert "127.0.0.1:9" in seen.banners[0].text
            assert "u:p" not in seen.raw
            assert len(seen.banners) == (1 if status == 200 else 2)
        assert f"projector {url}: " in (await look(client, f"{at}/decisions")).banners[1].text
        seen = await look(client, f"{at}/at?moment=1")
        assert "the ledger is empty" in seen.banners[1].text, "the bus is asked"


@pytest.mark.parametrize(
    ("health", "weight", "text"),
    [
        (
            {"status": "starting", "doubt": ""},
            "notice",
            f"The master is still checking stored history: until then {CALM}.",
        ),
        (well(status="standby"), "alarm", f"No master decides, one stands by: {CALM}."),
        (well(feed="the stream is full"), "notice", "Decisions are not told on the feed: the stream is full"),
    ],
)
async def test_what_a_master_says_of_itself_is_said_on_every_page(
    tmp_path: Path, health: dict[str, str], weight: str, text: str
):
    async with (
        serving(Peer({"/health": (503, health), STATE: state(mode=health["status"])})) as master,
        serving(Peer({"/health": {"status": "ok"}})) as other,
        console(tmp_path, master=master.url, projector=other.url, gateway=other.url) as url,
        aiohttp.ClientSession() as client,
    ):
        for path in ("/", "/decisions", "/why", "/at", "/telemetry"):
            seen = await look(client, url + path)
            assert seen.order[0] == weight
            assert (seen.banners[0].weight, seen.banners[0].text) == (weight, text)


async def test_why_of_a_model_says_first_what_only_a_masters_own_process_can_say(tmp_path: Path):
    unknown = model_story(State(), NodeId("n1"), ModelId("m"), version=1)
    story = msgspec.structs.replace(unknown, code="not_linked")
    told = {"/health": {"status": "ok"}, "/admin/v1/why/model/n1/m": msgspec.to_builtins(story)}
    doubting = state(mode="safe_mode", safe_mode=True, doubt="a hole in the ledger")
    async with (
        serving(Peer({"/health": well(status="safe_mode"), STATE: doubting})) as master,
        serving(Peer(told)) as other,
        serving(Peer({"/admin/v1/why/model/n1/m": msgspec.to_builtins(unknown)})) as stranger,
    ):
        seen = await seen_of(tmp_path, "/why?of=n1/m", master=master.url, projector=other.url)
        assert "the master is in safe mode" in seen.lines[0]
        assert "a hole in the ledger" in " ".join(" ".join(seen.lines).split())
        seen = await seen_of(tmp_path, "/why?of=n1/m", projector=other.url)
        assert (seen.status, "no master answers, so nobody grants a lease" in seen.lines[0]) == (200, True)
        seen = await seen_of(tmp_path, "/why?of=n1/m", projector=stranger.url)
        assert (seen.status, "no node n1 ever registered" in seen.banners[-1].text) == (404, True)
