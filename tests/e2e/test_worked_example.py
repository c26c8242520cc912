"""The worked example, on real processes: ten requests come at once to a node of depth 2, and another one helps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from domain.events import OwnerPlanned
from domain.events.commit import Commit
from tests.support.burst import Ask, Outcome, burst
from tests.support.chaos import HELPER, OWNER, TOKENS, warm
from tests.support.judge import bad_outcomes, ledger, second_starts, without_one_end
from tests.support.processes import Cluster, Node, cluster
from tests.support.tap import most_at_once, read_journal, starts
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]
DEPTH, REQUESTS = 2, 10
FIRST_LENT_MS_MAX = 100
TRIES = 3
"""The bound is on our own delay; a machine that runs other things besides gets three tries to show it."""


@pytest.fixture
def nodes() -> list[Node]:
    return [Node(id=OWNER, depth=DEPTH), Node(id=HELPER, depth=DEPTH)]


async def test_ten_requests_at_depth_two_are_shared_and_each_is_started_once(tmp_path: Path, nodes: list[Node]):
    async with cluster(tmp_path, nodes) as running:
        await warm(running)
        delays_ms = []
        for number in range(TRIES):
            outcomes, facts = await example(running, f"try{number}")
            judge_clients(running, outcomes, facts)
            judge_queue(facts)
            await judge_decisions(running, facts)
            delays_ms.append(first_lent_after_third_held_us(facts) / 1000)
            if delays_ms[-1] <= FIRST_LENT_MS_MAX:
                break
        print(f"first lent after third held: {delays_ms} ms")
        assert min(delays_ms) <= FIRST_LENT_MS_MAX, delays_ms


async def example(running: Cluster, name: str) -> tuple[list[Outcome], list[dict[str, Any]]]:
    """Return the outcomes of one burst, and the facts stated meanwhile."""
    before = {fact["event"]["id"] for fact in await running.events()}
    model = running.nodes[OWNER].model
    asks = [Ask(mark=f"{name}-{at}", model=model, tokens=TOKENS, stream=at % 2 == 1) for at in range(REQUESTS)]
    outcomes = await burst(running.endpoints.gateway, asks)

    async def all_told() -> list[dict[str, Any]]:
        facts = [fact for fact in await running.events() if fact["event"]["id"] not in before]
        return [] if list(without_one_end(facts, outcomes)) else facts

    return outcomes, await until("one end of each request in the facts", all_told)


def judge_clients(running: Cluster, outcomes: list[Outcome], facts: list[dict[str, Any]]) -> None:
    """Every client has a whole answer under the owner's model id; every request was started once, at depth 2 at most."""
    assert not list(bad_outcomes(outcomes))
    lines = running.journals()
    assert not list(second_starts(lines, outcomes))
    counted = starts(lines)
    assert {outcome.ask.mark: counted.get(outcome.ask.mark, 0) for outcome in outcomes} == {
        outcome.ask.mark: 1 for outcome in outcomes
    }
    assert most_at_once(read_journal(running.directory / f"tap-{OWNER}")) <= DEPTH
    assert most_at_once(read_journal(running.directory / f"tap-{HELPER}")) <= DEPTH
    at_helper = starts(read_journal(running.directory / f"tap-{HELPER}")).keys()
    served = {outcome.ask.mark for outcome in outcomes if outcome.headers.get("leaseway-served-by") == HELPER}
    assert served == at_helper & {outcome.ask.mark for outcome in outcomes}
    assert len(served) >= 2, "the helper took next to nothing"
    assert len([fact for fact in facts if fact["event"]["type"] == "lend.answered"]) == len(served)


def judge_queue(facts: list[dict[str, Any]]) -> None:
    """Two go to the engine at once, eight are held, and the engine never has a third."""
    own = [fact["event"] for fact in facts if fact["event"]["producer"] == OWNER]
    first: dict[str, str] = {}
    for event in own:
        if event["type"] in {"queue.started", "queue.held"}:
            first.setdefault(event["data"]["request"], event["type"])
    assert list(first.values()) == ["queue.started"] * DEPTH + ["queue.held"] * (REQUESTS - DEPTH)
    assert max(event["data"]["in_engine"] for event in own if event["type"] == "queue.started") == DEPTH


async def judge_decisions(running: Cluster, facts: list[dict[str, Any]]) -> None:
    """Every result that left work waiting was followed by a plan for the owner, in the commit that folded it."""
    results = list(results_with_work_waiting(facts))
    assert len(results) >= REQUESTS // 3

    async def commits() -> list[Commit]:
        found = await ledger(running)
        return found if found[-1].hi >= results[-1] else []

    planned = [commit for commit in await until("the results in the ledger", commits) if plans(commit)]
    assert [seq for seq in results if not any(commit.lo < seq <= commit.hi for commit in planned)] == []


def results_with_work_waiting(facts: list[dict[str, Any]]) -> Iterator[int]:
    """Yield the sequence of every fact by which the owner says that a request is done while others wait.

    Of two that wait one may start at once in the place that fell free; so there must be two for one to be left to decide about.
    """
    waiting = 0
    for fact in facts:
        event = fact["event"]
        if event["producer"] != OWNER:
            continue
        waiting += {"queue.held": 1, "lend.lent": -1}.get(event["type"], 0)
        waiting -= event["type"] == "queue.started" and event["data"]["wait_us"] > 0
        if event["type"] == "queue.finished" and waiting > 1:
            yield fact["seq"]


def plans(commit: Commit) -> bool:
    """Tell whether the commit holds a plan for the owner."""
    return any(isinstance(decision, OwnerPlanned) and decision.owner == OWNER for decision in commit.decisions)


def first_lent_after_third_held_us(facts: list[dict[str, Any]]) -> int:
    """Return the time from the third `held` to the first `lent`, both by the owner's own monotonic clock."""
    own = [fact["event"] for fact in facts if fact["event"]["producer"] == OWNER]
    held = [event["mono_us"] for event in own if event["type"] == "queue.held"]
    lent = [event["mono_us"] for event in own if event["type"] == "lend.lent"]
    return int(lent[0] - held[2])
