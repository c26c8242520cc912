"""What the demo does once everything runs: the burst alone, the link, the burst lent, the reasons, the audit."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from adapters.keys import load_credentials
from adapters.nats.control import ControlDesk
from domain.errors import BadLinkError, UnreachableError
from domain.events.decision import LeaseCleared, LeaseEvent
from domain.events.lend import Lent
from domain.ids import ModelId, NodeId
from services.cli.audit import audit
from services.cli.demo_burst import Answer, Burst, burst, tokens_counted
from services.cli.history import bus_of, ends_of, leases, lent
from services.cli.reach import Here, master_state
from services.cli.show import Waiting, duration
from services.config import Config
from services.data_directory import Endpoints

OWNER, HELPER = "studio", "attic"
MODELS: Final = {OWNER: "chat", HELPER: "chat-attic"}
"""Public model ids: clients ask for the owner's and get the owner's, whoever answers."""
DEPTH: Final = 2
SAMPLES: Final = 4
"""Measured requests until a price is believed. The default of 20 is for real traffic; the demo sends 10."""
RATIO_MAX: Final = 0.75
"""Lent, the burst must drain in this part of the time that it takes alone."""
_WARM_TOKENS: Final = 4
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.05


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo came to."""

    alone_s: float
    lent_s: float
    helped: int
    """Answers by the helper engine's own counter."""
    failures: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """Return the lent drain as a part of the one alone."""
        return self.lent_s / self.alone_s


class Demo:
    """One run over a cluster that is up."""

    def __init__(self, config: Config, endpoints: Endpoints, waiting: Waiting, *, requests: int, tokens: int) -> None:
        self._place = Here(config, endpoints)
        self._waiting, self._requests, self._tokens = waiting, requests, tokens
        self._engine = endpoints.engines[HELPER][0]
        self._failures: list[str] = []

    async def run(self) -> Outcome:
        """Do it all and return what came of it."""
        await self._until("both nodes to be ready", self._ready)
        await asyncio.to_thread(self._prepare)
        await self._warm()
        outcome = await self._compare()
        if outcome.ratio > RATIO_MAX and not self._failures:
            self._say(f"\nlent took {outcome.ratio:.2f} x of alone: this machine has other work; both once more")
            await asyncio.to_thread(self._prepare)
            await self._until("the link to be gone", lambda state: not self._linked(state))
            outcome = await self._compare()
        await self._audit()
        return msgspec.structs.replace(outcome, failures=tuple(self._failures))

    async def _compare(self) -> Outcome:
        """Run the burst alone, then with the link."""
        alone = await self._burst("alone")
        await self._until(f"the price of {OWNER}'s work", self._priced)
        await asyncio.to_thread(self._link)
        await self._until("the link to be known", self._linked)
        before, counted = await self._ends_so_far(), await tokens_counted(self._engine)
        shared = await self._burst("with the link")
        helped = (await tokens_counted(self._engine) - counted) // self._tokens
        await self._explain(shared, before)
        outcome = Outcome(alone_s=alone.drain_s, lent_s=shared.drain_s, helped=helped, failures=())
        self._say(f"\ndrain alone {outcome.alone_s:.2f} s, lent {outcome.lent_s:.2f} s: {outcome.ratio:.2f} x")
        self._say(f"{HELPER}'s engine counted {helped} answers of {self._tokens} tokens of its own")
        return outcome

    def _say(self, text: str) -> None:
        self._waiting.done()
        print(text, flush=True)

    async def _until(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Return once `holds` of the master's state.

        Raises:
            UnreachableError: it does not in time.
        """
        self._waiting(f"waiting for {what}")
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not await self._holds(holds):  # noqa: ASYNC110  # another process' state
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise UnreachableError(f"waited {_PATIENCE_S:.0f} s for {what}, in vain") from None

    async def _holds(self, holds: Callable[[dict[str, Any]], bool]) -> bool:
        try:
            return holds(await master_state(self._place))
        except UnreachableError:
            return False

    @staticmethod
    def _model(state: dict[str, Any], node: str) -> dict[str, Any]:
        """Return what the master knows of a node's model; empty if it does not know it yet."""
        models = [model for one in state["nodes"] if one["node"] == node for model in one["models"]]
        return next((model for model in models if model["id"] == MODELS[node]), {})

    def _ready(self, state: dict[str, Any]) -> bool:
        return all(self._model(state, node).get("ready") for node in (OWNER, HELPER))

    def _priced(self, state: dict[str, Any]) -> bool:
        return int(self._model(state, OWNER).get("samples", 0)) >= SAMPLES

    def _linked(self, state: dict[str, Any]) -> bool:
        return any(link["owner"] == OWNER and link["helper"] == HELPER for link in state["links"])

    def _prepare(self) -> None:
        """Set the few samples that the demo has, and end a link that an earlier run left."""
        with self._desk() as desk:
            desk.set_setting("scheduling_min_samples", SAMPLES)
            try:
                desk.remove_link(*self._ends())
            except BadLinkError:
                return

    def _link(self) -> None:
        with self._desk() as desk:
            desk.add_link(*self._ends())
        ends = " ".join(f"{node}/{MODELS[node]}" for node in (OWNER, HELPER))
        self._say(f"\nthe link is made, as by `leaseway links add {ends}`")

    def _desk(self) -> ControlDesk:
        credentials = load_credentials(self._place.operator_key())
        return ControlDesk(self._place.endpoints.nats, credentials, self._place.config.cluster.name)

    @staticmethod
    def _ends() -> tuple[NodeId, ModelId, NodeId, ModelId]:
        return NodeId(OWNER), ModelId(MODELS[OWNER]), NodeId(HELPER), ModelId(MODELS[HELPER])

    async def _warm(self) -> None:
        """Have each engine answer once, so that neither run pays for a cold start."""
        self._waiting("warming both engines up")
        for node in (OWNER, HELPER):
            warm = await burst(self._place.endpoints.nodes[node], MODELS[node], 1, _WARM_TOKENS)
            self._note_bad(f"warming {node} up", warm, MODELS[node])

    async def _burst(self, how: str) -> Burst:
        """Send the burst to the gateway."""
        self._waiting(f"{self._requests} requests at once to {MODELS[OWNER]}, {how}")
        done = await burst(self._place.endpoints.gateway, MODELS[OWNER], self._requests, self._tokens)
        self._say(f"{how}: {self._requests} requests of {self._tokens} tokens drained in {done.drain_s:.2f} s")
        self._note_bad(how, done, MODELS[OWNER])
        return done

    def _note_bad(self, what: str, done: Burst, model: str) -> None:
        """Keep what is wrong: a failed request, or an answer under another model id than the one that was asked for."""
        for answer in done.answers:
            if not answer.good:
                self._failures.append(f"{what}: request {answer.number}: answer {answer.status}: {answer.error}")
            elif answer.model != model:
                self._failures.append(f"{what}: request {answer.number}: model must be {model!r}, is {answer.model!r}")

    async def _ends_so_far(self) -> tuple[int, int]:
        async with bus_of(self._place) as bus:
            return await ends_of(bus)

    async def _explain(self, done: Burst, before: tuple[int, int]) -> None:
        """Print who was lent and every lease since `before`."""
        async with bus_of(self._place) as bus:
            decided = await leases(bus, after=before[0])
            went = await lent(bus, after=before[1])
        by_request = {str(fact.request): fact for fact in went}
        count = sum(answer.served_by == HELPER for answer in done.answers)
        self._say(f"\n{HELPER} answered {count} of {len(done.answers)} requests, in order of their answers:")
        for answer in sorted(done.answers, key=lambda answer: answer.seconds):
            self._say(told_answer(answer, by_request.get(answer.request)))
        self._say("\nthe leases, each with its price and its reason:")
        for decision in decided:
            self._say(_told_lease(decision))
        if not decided:
            self._failures.append("leases: there must be at least one, there was none (leaseway decisions says why)")

    async def _audit(self) -> None:
        report = await audit(self._place, self._waiting)
        self._say(report.line())
        self._failures += [f"audit: {one.place} at version {one.version}: {one.detail}" for one in report.differences]


def told_answer(answer: Answer, fact: Lent | None) -> str:
    """Return the line of one request; `fact` is its newest lend. Who was lent and came home is no helper's answer."""
    where = f"by {answer.served_by or OWNER} itself"
    if fact:
        where = f"lent to {fact.helper} under lease {fact.lease}, after {duration(fact.waited_us)} in the queue"
        if answer.served_by == OWNER:
            where += f"; came back, by {OWNER} itself"
    return f"  request {answer.number:>2}  {answer.seconds:6.2f} s  {where}  {answer.request}"


def _told_lease(decision: LeaseEvent) -> str:
    kind = type(decision).__name__.removeprefix("Lease").lower()
    why = decision.reason or "no reason stated"
    if isinstance(decision, LeaseCleared):
        return f"  {kind:<8} {decision.lease}: {why}"
    price = f"a job there {duration(decision.job_us)} (priced by {decision.source or 'nobody'})"
    gain = f"gain {duration(decision.gain_us)} of waiting"
    return f"  {kind:<8} {decision.lease}: slots {decision.slots} at {decision.helper}; {price}, {gain}; {why}"
