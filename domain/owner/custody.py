"""The requests that one node received for one model: arrival, hold, engine, and the one end that each of them has.

Lending stands on top of it (domain.owner.queue).
"""

from collections.abc import Mapping

import msgspec

from domain.actions import CancelEngine, Dispatch, Output, Refuse
from domain.events import Fact
from domain.ids import RequestId
from domain.inputs import EngineResult, LendResult, NewRequest, NewSize, RuntimeConfig
from domain.owner.drain_rate import DrainRate
from domain.owner.facts import FactMaker
from domain.owner.held import HeldQueue
from domain.owner.request import OwnRequest
from domain.pipe import Left

_NO_ANSWER = 502
STREAMING_OFF = "streaming_off"
_RESIZE_AT_MOST = 1_000
"""Requests stated again in one input."""
_RETRY_LOAD_S = 30
"""What a client is told to wait where the model cannot be loaded: as long as the pause between two tries grows to."""


class Custody:
    """Every open request of one model, at exactly one place. Methods append facts and actions to `out`."""

    def __init__(self, config: RuntimeConfig) -> None:
        self._config = config
        self._facts = FactMaker(config)
        self._requests: dict[RequestId, OwnRequest] = {}
        self._held = HeldQueue()
        self._rate = DrainRate()
        self._seq = 0
        self._in_engine = 0
        self._said_us = 0
        self._lease_events = 0
        """Taken so far."""
        self.enrolled = False

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._requests

    def has_not_begun(self, request: RequestId) -> bool:
        """Tell whether an own request is held and has begun nowhere, a helper included."""
        own = self._requests.get(request)
        return own is not None and own.place == "held" and not own.may_have_run

    @property
    def held(self) -> int:
        """How many requests are held."""
        return len(self._held)

    # -- arrival ----------------------------------------------------------------------------------------------------

    def refuse(self, new: NewRequest, code: str, now_us: int, out: list[Output]) -> None:
        """Refuse `new`: queue_full or draining."""
        self._rate.refused()
        self._say(self._facts.rejected(new, code), now_us, out)
        message = f"model {self._config.model}: {self.held} requests wait, {self._config.held_max} may"
        if code == "draining":
            message = f"model {self._config.model}: node {self._config.node} is shutting down"
        out.append(
            Refuse(
                request=new.request,
                status=503,
                code="queue_full" if code == "queue_full" else "model_unavailable",
                message=message,
                retry_after_s=self._rate.retry_after_s(now_us),
            )
        )

    def set_lending(self, ttl_us: int, now_us: int, out: list[Output], *, streams: bool) -> None:
        """Change `offload_lease_ttl`, and whether streams may be lent; those that are held are stated again.

        A stream that came while it was off may be lent once it is on: it was kept for the setting alone.
        """
        if (ttl_us, streams) == (self._config.lease_ttl_us, self._config.offload_streams):
            return
        self._config = msgspec.structs.replace(self._config, lease_ttl_us=ttl_us, offload_streams=streams)
        for own in self._held.in_order():
            if self._judge_stream(own):
                self._held.put(own)
                if self.enrolled:
                    self._say(self._facts.held(own, self.held), now_us, out)

    def _judge_stream(self, own: OwnRequest) -> bool:
        """Follow `offload_streams`; tell whether that changed whether `own` may be lent."""
        if own.not_lendable == STREAMING_OFF and self._config.offload_streams:
            own.not_lendable = _not_lendable(own.new, self._config)
            own.lendable = not own.not_lendable
            return True
        if own.lendable and own.new.streaming and not self._config.offload_streams:
            own.keep_from_lending(STREAMING_OFF)
            return True
        return False

    def arrive(self, new: NewRequest, now_us: int, *, behind: int, behind_load: bool) -> OwnRequest:
        """Take custody of `new`. It has no place yet: `start` or `hold` it next.

        `behind`: borrowed requests inside the engine. `behind_load`: a model is being loaded for borrowed work.
        """
        assert new.request not in self._requests, f"request {new.request}: came twice"
        why = _not_lendable(new, self._config)
        self._seq += 1
        request = OwnRequest(
            new=new,
            seq=self._seq,
            arrived_us=now_us,
            deadline_us=now_us + self._config.wait_us_max,
            lendable=not why,
            not_lendable=why,
            behind=behind,
            behind_load=behind_load,
            lease_events=self._lease_events,
        )
        self._requests[new.request] = request
        return request

    def hold(self, request: OwnRequest, now_us: int, out: list[Output]) -> None:
        """Hold `request`, at its place in the order of arrival."""
        request.place, request.since_us = "held", now_us
        self._judge_stream(request)
        self._held.put(request)
        if self.enrolled:
            self._say(self._facts.held(request, self.held), now_us, out)

    def resize(self, sizes: Mapping[RequestId, NewSize], now_us: int, out: list[Output]) -> None:
        """Take what is known by now of requests that came before it was; those that are held are stated again.

        Their work too: what is measured from now on is stated in the unit that the answers gave, and so must be what waits.
        """
        known = [own for request in sizes if (own := self._requests.get(request)) is not None]
        resized = [(own, new) for own in known if (new := _resized(own.new, sizes[own.new.request])) != own.new]
        for own, new in sorted(resized, key=lambda pair: pair[0].seq)[:_RESIZE_AT_MOST]:
            own.new = new
            if own.place == "held" and self.enrolled:
                self._say(self._facts.held(own, self.held), now_us, out)

    # -- the own engine ---------------------------------------------------------------------------------------------

    def first_held(self) -> OwnRequest | None:
        """Return the request that goes to the engine next; None if none is held."""
        return self._held.first()

    def start(self, request: OwnRequest, in_engine: int, now_us: int, out: list[Output]) -> None:
        """Give `request` to the engine; `in_engine`: requests inside, this one counted."""
        if request.place == "held":
            self._held.remove(request)
        request.place, request.since_us = "engine", now_us
        self._in_engine += 1
        if self.enrolled:
            self._say(self._facts.started(request, in_engine), now_us, out)
        out.append(Dispatch(request=request.new.request))

    def served(self, request: RequestId, now_us: int, out: list[Output]) -> None:
        """The engine's service of `request` begins now."""
        own = self._requests[request]
        own.began_us = now_us
        if (own.behind or own.behind_load) and now_us > own.arrived_us and self.enrolled:
            self._say(self._facts.native_waited(own), now_us, out)
            own.behind, own.behind_load = 0, False  # said once, also if the engine turns out not to have begun

    def engine_finished(
        self, request: RequestId, result: EngineResult, left: Left, now_us: int, out: list[Output]
    ) -> None:
        """`request` left the engine: it ends here, unless it provably never started; then it is held again."""
        own = self._requests[request]
        if result.work:
            own.new = msgspec.structs.replace(own.new, work=result.work)
        own.began_us = left.began_us
        self._in_engine -= 1
        if own.gone:
            self._end(own, self._facts.cancelled(own, left.service_us, "engine", now_us), now_us, out)
        elif result.not_started:
            own.began_us = None
            self.hold(own, now_us, out)
        elif result.complete and result.status:
            answer = LendResult(
                status=result.status,
                service_us=left.service_us,
                tokens_in=result.tokens_in,
                tokens_out=result.tokens_out,
            )
            self._answered(own, answer, now_us, out)
        else:
            self._fail(own, left.service_us, result.code or "engine_failed", now_us, out)

    def engine_died(self, request: RequestId, left: Left, now_us: int, out: list[Output]) -> None:
        """The engine died with `request` inside. It does not run again: it may be what killed the engine."""
        if not self._requests[request].gone:  # else it is cancelled already
            out.append(CancelEngine(request=request))
        self.engine_finished(request, EngineResult(status=0, complete=False), left, now_us, out)

    # -- ends -------------------------------------------------------------------------------------------------------

    def refuse_held(self, why: str, now_us: int, out: list[Output]) -> None:
        """Refuse all that is held, since its model cannot be loaded: 503 model_unavailable (502 if a helper may have run it)."""
        while (own := self._held.first()) is not None:
            self._held.remove(own)
            if own.may_have_run:
                self._fail(own, 0, "engine_failed", now_us, out)
                continue
            self._end(own, self._facts.failed(own, 0, 503, "load_failed", now_us), now_us, out)
            out.append(
                Refuse(
                    request=own.new.request,
                    status=503,
                    code="model_unavailable",
                    message=f"model {self._config.model}: {why}",
                    retry_after_s=_RETRY_LOAD_S,
                )
            )

    def expire_held(self, now_us: int, out: list[Output]) -> None:
        """End the held requests whose time is over."""
        while (own := self._held.first_due()) is not None and own.deadline_us <= now_us:
            self._held.remove(own)
            if own.may_have_run:  # "never started" cannot be said of it
                self._fail(own, 0, "engine_failed", now_us, out)
                continue
            waited_s = (now_us - own.arrived_us) // 1_000_000
            retry_after_s = self._rate.retry_after_s(now_us)
            self._end(own, self._facts.expired(own, now_us), now_us, out)
            out.append(
                Refuse(
                    request=own.new.request,
                    status=504,
                    code="queue_timeout",
                    message=f"model {self._config.model}: waited {waited_s} s and did not start",
                    retry_after_s=retry_after_s,
                )
            )

    # -- inside -----------------------------------------------------------------------------------------------------

    def _say(self, fact: Fact, now_us: int, out: list[Output]) -> None:
        self._said_us = now_us
        out.append(fact)

    def _answered(self, own: OwnRequest, result: LendResult, now_us: int, out: list[Output]) -> None:
        if result.status < 500:
            self._end(own, self._facts.finished(own, result, now_us), now_us, out)
        else:  # passed on unchanged
            fact = self._facts.failed(own, result.service_us, result.status, "engine_error", now_us)
            self._end(own, fact, now_us, out)

    def _fail(self, own: OwnRequest, service_us: int, code: str, now_us: int, out: list[Output]) -> None:
        where = f"helper {own.helper}" if own.helper else f"node {self._config.node}"
        self._end(own, self._facts.failed(own, service_us, _NO_ANSWER, code, now_us), now_us, out)
        out.append(
            Refuse(
                request=own.new.request,
                status=_NO_ANSWER,
                code=code,
                message=f"model {self._config.model}: the engine of {where} failed, and the request may have run there",
                may_have_run=True,
            )
        )

    def _end(self, own: OwnRequest, terminal: Fact, now_us: int, out: list[Output]) -> None:
        del self._requests[own.new.request]
        self._rate.departed(now_us)
        self._say(terminal, now_us, out)


def _resized(new: NewRequest, size: NewSize) -> NewRequest:
    return msgspec.structs.replace(new, est_tokens=new.est_tokens or size.est_tokens, work=size.work or new.work)


def _not_lendable(new: NewRequest, config: RuntimeConfig) -> str:
    if not new.lendable:
        return new.not_lendable or "request"
    if new.streaming and not config.offload_streams:
        return STREAMING_OFF
    return "" if new.replayable else "not_replayable"
