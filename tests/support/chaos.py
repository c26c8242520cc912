"""Kill campaigns: one part, at a random moment of a burst, and what must hold afterwards."""

import asyncio
import contextlib
import os
import random
import secrets
from collections.abc import Sequence

import msgspec

from tests.support.burst import Ask, Outcome, burst, now_us
from tests.support.judge import bad_outcomes, second_starts, settled, without_one_end
from tests.support.processes import Cluster
from tests.support.tap import Line
from tests.support.waiting import until

OWNER, HELPER = "studio", "attic"
REQUESTS, TOKENS = 12, 800
SETTLE_S = 10
BACK_S = 30


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One kill and what the clients saw."""

    part: str
    outcomes: list[Outcome]
    killed_us: int
    burst_us: tuple[int, int]

    def told(self) -> str:
        """Return the round in one line, for a failure's report."""
        after_ms = (self.killed_us - self.burst_us[0]) // 1000
        lasted_ms = (self.burst_us[1] - self.burst_us[0]) // 1000
        return f"{self.part} was killed {after_ms} ms into a burst of {lasted_ms} ms"


def dice() -> random.Random:
    """Return the campaign's dice; the seed is printed, and can be given as LEASEWAY_TEST_SEED."""
    seed = os.environ.get("LEASEWAY_TEST_SEED") or secrets.token_hex(4)
    print(f"LEASEWAY_TEST_SEED={seed}")
    return random.Random(seed)


def mixed(prefix: str, model: str, count: int = REQUESTS, tokens: int = TOKENS) -> list[Ask]:
    """Return asks of which every other one is a stream."""
    return [Ask(mark=f"{prefix}-{at}", model=model, tokens=tokens, stream=at % 2 == 1) for at in range(count)]


async def warm(cluster: Cluster, rounds: int = 4) -> None:
    """Let the owner's engine be measured, which prices its work, and link the owner to the helper."""
    model = cluster.nodes[OWNER].model
    for at in range(rounds):
        ask = Ask(mark=f"warm-{at}-{now_us()}", model=model, tokens=TOKENS)
        (outcome,) = await burst(cluster.endpoints.gateway, [ask])
        assert outcome.good, outcome
    await cluster.link(OWNER, HELPER)
    await until("a price of the owner's work", lambda: priced(cluster))


async def priced(cluster: Cluster) -> bool:
    """Tell whether the master has measured the owner's work."""
    nodes = (await cluster.state()).get("nodes", ())
    return any(model["samples"] > 0 for node in nodes if node["node"] == OWNER for model in node["models"])


async def kill_round(cluster: Cluster, part: str, name: str, within_s: float, fate: random.Random) -> Round:
    """Kill `part` at a random moment of a burst, let it come back, and return what the clients saw."""
    asks = mixed(name, cluster.nodes[OWNER].model)
    began_us = now_us()
    bursting = asyncio.ensure_future(burst(cluster.endpoints.gateway, asks))
    await asyncio.sleep(fate.uniform(0, within_s))
    killed_us = now_us()
    pid = cluster.kill(part)
    outcomes = await bursting
    ended_us = now_us()
    kind, _, node = part.partition(":")
    if kind == "engine":
        await cluster.start_engine(node)
        await cluster.ready(timeout_s=BACK_S)
    else:
        await cluster.replaced(part, pid, timeout_s=BACK_S)
    return Round(part=part, outcomes=outcomes, killed_us=killed_us, burst_us=(began_us, ended_us))


async def judged(cluster: Cluster, done: Round) -> list[str]:
    """Return what does not hold: clients, starts, ends, audit and rows; at most `SETTLE_S` after all is over."""
    lines = cluster.journals()
    facts = await cluster.events()
    excused = excuses(done, lines, facts)
    findings = [*bad_outcomes(done.outcomes, excused), *second_starts(lines, done.outcomes)]
    findings += await unended(cluster, done)
    return [*findings, *await unsettled(cluster)]


async def unended(cluster: Cluster, done: Round) -> list[str]:
    """Return which requests do not have one end in the facts, `SETTLE_S` from now at the latest: spools empty by then."""
    last: list[str] = []

    async def ended() -> bool:
        last[:] = without_one_end(await cluster.events(), done.outcomes)
        return not last

    with contextlib.suppress(AssertionError):
        await until("one end of each request", ended, timeout_s=SETTLE_S)
    return last


async def unsettled(cluster: Cluster) -> list[str]:
    """Return what is not as it must be at rest, `SETTLE_S` from now at the latest; empty once audit and rows are right."""
    last = ["the audit did not end"]

    async def at_rest() -> bool:
        last[0] = await settled(cluster)
        return not last[0]

    try:
        await until("a clean audit and equal rows", at_rest, timeout_s=SETTLE_S)
    except AssertionError:
        return last
    return []


def excuses(done: Round, lines: Sequence[Line], facts: Sequence[dict[str, object]]) -> set[str]:
    """Return the marks of requests that may fail, since their bytes were at the killed part.

    An engine may have died of any of its requests, so none of them gets a second one. What a dead helper had runs again at its
    owner, but for streams. A request that the tap still took when the engine was dead (REFUSED) looks to its node as if it had.
    """
    kind, _, node = done.part.partition(":")
    if kind == "engine":
        lost = {"BROKEN", "REFUSED"}
        return {line.key for line in lines if line.what in lost and line.at_us >= done.killed_us - 1000}
    if kind == "node":
        lent = {
            fact["event"]["data"]["request"]  # type: ignore[index]
            for fact in facts
            if fact["event"]["type"] == "lend.lent" and fact["event"]["data"]["helper"] == node  # type: ignore[index]
        }
        return {outcome.ask.mark for outcome in done.outcomes if outcome.ask.stream and outcome.request in lent}
    return set()
