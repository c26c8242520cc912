"""kill -9 of each part at a random moment of a burst, on real processes. `make kills N=20` does it 20 times each."""

import os

import pytest
import pytest_asyncio

from tests.support.burst import burst, now_us
from tests.support.chaos import HELPER, OWNER, SETTLE_S, dice, judged, kill_round, mixed, unsettled, warm
from tests.support.judge import accepted, bad_outcomes, ends_of, ledger, second_starts
from tests.support.processes import Cluster, Node, cluster
from tests.support.waiting import until

ROUNDS = int(os.environ.get("LEASEWAY_TEST_KILLS", "1"))
pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120 + 120 * ROUNDS)]
PARTS = ("master", "projector", f"engine:{HELPER}", f"node:{HELPER}", "nats-server")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory):
    async with cluster(tmp_path_factory.mktemp("kills"), [Node(id=OWNER), Node(id=HELPER)]) as up:
        await warm(up)
        yield up


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def drain_s(running: Cluster) -> float:
    """How long a burst takes that nobody disturbs."""
    began_us = now_us()
    outcomes = await burst(running.endpoints.gateway, mixed("calm", running.nodes[OWNER].model))
    assert all(outcome.good for outcome in outcomes), outcomes
    return (now_us() - began_us) / 1e6


@pytest.mark.parametrize("part", PARTS)
async def test_a_kill_costs_no_answer_but_those_that_were_there_and_nothing_of_the_record(
    running: Cluster, drain_s: float, part: str
):
    fate = dice()
    for number in range(ROUNDS):
        done = await kill_round(running, part, f"{part.replace(':', '.')}-{number}", drain_s, fate)
        findings = await judged(running, done)
        assert not findings, "\n".join([f"round {number}: {done.told()}", *findings, running.words()])


async def test_a_killed_owner_leaves_one_end_of_each_request_it_took_and_no_invented_answer(
    running: Cluster, drain_s: float
):
    fate = dice()
    for number in range(ROUNDS):
        done = await kill_round(running, f"node:{OWNER}", f"owner-{number}", drain_s, fate)
        lines, everyone = running.journals(), [outcome.ask.mark for outcome in done.outcomes]
        findings = [*bad_outcomes(done.outcomes, everyone), *second_starts(lines, done.outcomes)]
        assert not findings, "\n".join([f"round {number}: {done.told()}", *findings])
        await until("one end of each request", lambda: all_ended_once(running), timeout_s=SETTLE_S)
        assert not await unsettled(running)


async def all_ended_once(running: Cluster) -> bool:
    facts = await running.events()
    ends = ends_of(facts, await ledger(running))
    return all(ends[request] == 1 for request in accepted(facts, OWNER))
