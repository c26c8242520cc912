"""However many look at the console, what it asks of the other processes stays the same; and none of them waits for another."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from domain.errors import UnreachableError
from services.console import peers as console_peers
from services.console.peers import FRESH_US, STATE, Peers
from services.data_directory import Endpoints
from tests.support.console_pages import look
from tests.support.console_peers import Peer, console, serving, state, well
from tests.support.waiting import until

VIEWERS = 40


class Hand:
    """A clock that goes on when the test says so."""

    def __init__(self) -> None:
        self.now_us = 0

    def monotonic_us(self) -> int:
        return self.now_us

    def wall_us(self) -> int:
        return self.now_us


class Asked:
    """Three processes, and what asks them."""

    def __init__(self, master: Peer, projector: Peer, gateway: Peer) -> None:
        self.clock = Hand()
        self.all = (master, projector, gateway)
        self.master, self.projector, self.gateway = self.all
        self.at = Endpoints(master=master.url, projector=projector.url, gateway=gateway.url)
        self.peers = Peers(lambda: self.at, self.clock)

    async def viewed(self, viewers: int = VIEWERS) -> None:
        """Let so many look at once at what every page and the page of the cluster show."""
        await asyncio.gather(*(ask() for ask in (self.peers.health, self.peers.state) for _ in range(viewers)))

    def counts(self) -> list[list[str]]:
        return [sorted(peer.asked) for peer in self.all]


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    async with AsyncExitStack() as stack:
        master = await stack.enter_async_context(serving(Peer({"/health": well(), STATE: state()})))
        projector = await stack.enter_async_context(serving(Peer({"/health": {"status": "ok"}, "/a": [1]})))
        gateway = await stack.enter_async_context(serving(Peer({"/health": {"status": "ok"}})))
        yield Asked(master, projector, gateway)


ONCE = [[STATE, "/health"], ["/health"], ["/health"]]


async def test_many_viewers_within_a_second_cost_each_asked_process_one_request(asked: Asked):
    await asked.viewed()
    assert asked.counts() == ONCE
    asked.clock.now_us += FRESH_US
    await asked.viewed()
    assert asked.counts() == ONCE


async def test_an_answer_that_is_older_than_a_second_is_asked_anew_once_for_all(asked: Asked):
    await asked.viewed()
    asked.clock.now_us += FRESH_US + 1
    asked.master.answers["/health"] = well(doubt="later")
    await asked.viewed()
    assert asked.counts() == [sorted(each * 2) for each in ONCE]
    assert {said.body["doubt"] for said in await asked.peers.health() if said.name == "master"} == {"later"}


async def test_one_that_does_not_answer_is_asked_once_a_second_too(asked: Asked):
    asked.master.answers[STATE] = (0, None)
    counts = []
    for now_us in (0, 1, FRESH_US):
        asked.clock.now_us = now_us
        with pytest.raises(UnreachableError, match=f"master {asked.master.url}: cannot be reached"):
            await asked.peers.state()
        counts.append(len(asked.master.asked))  # the client asks once more where a connection is closed on it
    assert len(set(counts)) == 1
    asked.clock.now_us += 1
    asked.master.answers[STATE] = state(version=9)
    assert (await asked.peers.state())["version"] == 9


async def test_the_same_path_with_another_query_is_another_question(asked: Asked):
    for query in ({}, {"kind": "plan"}, {"kind": "granted"}, {"kind": "plan"}):
        assert await asked.peers.history("/a", query) == (200, [1])
    assert asked.projector.asked == ["/a", "/a?kind=plan", "/a?kind=granted"]


async def test_answers_are_kept_in_a_number_that_no_caller_can_raise_and_for_a_second(asked: Asked):
    for number in range(2 * console_peers._KEPT_MAX):
        await asked.peers.history("/a", {"n": str(number)})
    assert len(asked.peers._kept) == console_peers._KEPT_MAX
    asked.clock.now_us += FRESH_US + 1
    await asked.peers.history("/a", {"n": "new"})
    assert len(asked.peers._kept) == 1


async def test_a_viewer_that_hangs_up_does_not_end_the_answer_of_the_others(asked: Asked, tmp_path: Path):
    """Neither within the process, nor as a browser does it that closes the page."""
    asked.master.open.clear()
    urls = {"master": asked.master.url, "projector": asked.projector.url, "gateway": asked.gateway.url}
    async with console(tmp_path, **urls) as url, aiohttp.ClientSession() as client:
        first = asyncio.create_task(look(client, url))
        await until("questions that wait", lambda: len(asked.master.asked) == 2)
        second = asyncio.create_task(look(client, url))
        first.cancel()
        await asyncio.wait({first})
        third = asyncio.create_task(look(client, url))
        asked.master.open.set()
        for seen in await asyncio.gather(second, third):
            assert {row["state"] for row in seen.rows("process")} == {"active", "ok"}
    assert sorted(asked.master.asked) == [STATE, "/health"]


async def test_what_is_still_asked_when_the_console_ends_is_given_up(asked: Asked):
    asked.master.open.clear()
    waiting = asyncio.create_task(asked.peers.state())
    await until("a question that waits", lambda: asked.master.asked)
    [(_, asking)] = asked.peers._kept.values()
    await asked.peers.close()
    assert asking.cancelled()
    await asyncio.wait({waiting})
    assert waiting.cancelled()


async def test_a_process_that_takes_questions_and_answers_none_is_said_to_be_silent_on_a_page_that_comes(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(console_peers, "_PATIENCE_S", 0.05)
    asked.master.open.clear()
    urls = {"master": asked.master.url, "projector": asked.projector.url, "gateway": asked.gateway.url}
    async with console(tmp_path, **urls) as url, aiohttp.ClientSession() as client:
        seen = await look(client, url)
        assert {row["process"]: row["state"] for row in seen.rows("process")} == {
            "gateway": "ok",
            "projector": "ok",
            "master": "silent",
        }
        assert (seen.status, seen.banners[0].weight) == (200, "alarm")
        assert f"master {asked.master.url}: has not answered for 0.05 s" in seen.banners[0].text
        asked.master.open.set()


async def test_one_that_answers_as_no_process_of_ours_does_is_not_said_to_be_well(asked: Asked):
    """A refusal, such as of a name that it does not answer to, is no health; nor is somebody else's page at that port."""
    asked.projector.answers["/health"] = (421, {"error": {"code": "host_not_allowed", "message": "no name of mine"}})
    asked.gateway.answers["/health"] = ["hello"]
    said = {each.name: each for each in await asked.peers.health()}
    assert said["projector"].state == "answers 421"
    assert said["projector"].problem.endswith(f"{asked.projector.url}: answers 421: no name of mine")
    assert said["gateway"].state == "answers 200"
