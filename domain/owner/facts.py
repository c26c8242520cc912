"""The facts of an owner's queue, made from its requests."""

from domain.events import (
    Cancelled,
    CutOff,
    Expired,
    Failed,
    Finished,
    Held,
    Kept,
    LeaseChanged,
    LeaseGranted,
    LendAnswered,
    LendBusy,
    LendReturned,
    Lent,
    NativeWaited,
    OpenRequest,
    QueueSnapshot,
    Rejected,
    RelayRefused,
    Started,
)
from domain.ids import LeaseId, LinkId
from domain.inputs import LendResult, NewRequest, RuntimeConfig
from domain.owner.keeping import Estimate
from domain.owner.request import OwnRequest


class FactMaker:
    """Makes the facts of one model's queue."""

    def __init__(self, config: RuntimeConfig) -> None:
        self._model, self._lane = config.model, config.lane

    def held(self, request: OwnRequest, waiting: int) -> Held:
        """`waiting`: held requests, this one counted."""
        new = request.new
        return Held(
            request=new.request,
            model=self._model,
            lane=self._lane,
            work=new.work,
            size_bytes=new.size_bytes,
            est_tokens=new.est_tokens,
            streaming=new.streaming,
            replayable=new.replayable,
            lendable=request.lendable,
            not_lendable=request.not_lendable,
            tenant=new.tenant,
            waiting=waiting,
            vision=new.vision,
        )

    def kept(self, request: OwnRequest, estimate: Estimate, now_us: int) -> Kept:
        """It is kept from the engine for a helper that should end it sooner."""
        return Kept(
            request=request.new.request,
            model=self._model,
            helper=estimate.helper,
            link=estimate.link,
            owner_finish_us=estimate.owner_finish_us,
            helper_finish_us=estimate.helper_finish_us,
            waited_us=now_us - request.arrived_us,
            owner_job_us=estimate.owner_job_us,
            helper_job_us=estimate.helper_job_us,
        )

    def started(self, request: OwnRequest, in_engine: int) -> Started:
        """`in_engine`: requests inside the engine, this one counted."""
        return Started(
            request=request.new.request,
            model=self._model,
            work=request.new.work,
            wait_us=request.since_us - request.arrived_us,
            in_engine=in_engine,
        )

    def finished(self, request: OwnRequest, result: LendResult, now_us: int) -> Finished:
        """The client got a whole answer, from the own engine or from a helper."""
        return Finished(
            request=request.new.request,
            model=self._model,
            work=request.new.work,
            wait_us=_wait_us(request, result.service_us, now_us),
            service_us=result.service_us,
            status=result.status,
            tokens_in=result.tokens_in,
            tokens_out=result.tokens_out,
            helper=request.helper,
        )

    def failed(self, request: OwnRequest, service_us: int, status: int, code: str, now_us: int) -> Failed:
        """The client was told `status` (or, mid-stream, the error event that stands for it)."""
        return Failed(
            request=request.new.request,
            model=self._model,
            work=request.new.work,
            wait_us=_wait_us(request, service_us, now_us),
            service_us=service_us,
            status=status,
            code=code,
            helper=request.helper,
        )

    def cancelled(self, request: OwnRequest, service_us: int, where: str, now_us: int) -> Cancelled:
        """`where` the request was when its client left: held, engine or lent."""
        return Cancelled(
            request=request.new.request,
            model=self._model,
            work=request.new.work,
            wait_us=_wait_us(request, service_us, now_us),
            service_us=service_us,
            code=where,
            helper=request.helper,
        )

    def expired(self, request: OwnRequest, now_us: int) -> Expired:
        """It waited longer than its bound and never started."""
        return Expired(
            request=request.new.request,
            model=self._model,
            work=request.new.work,
            wait_us=now_us - request.arrived_us,
            status=504,
            code="queue_timeout",
        )

    def rejected(self, new: NewRequest, code: str) -> Rejected:
        """It was refused at its arrival."""
        return Rejected(request=new.request, model=self._model, work=new.work, status=503, code=code)

    def lent(self, request: OwnRequest, grant: LeaseGranted | LeaseChanged, out: int, now_us: int) -> Lent:
        """`out`: requests out over the link, this one counted."""
        return Lent(
            request=request.new.request,
            model=self._model,
            helper=request.helper,
            link=grant.link,
            lease=grant.lease,
            work=request.new.work,
            out=out,
            waited_us=now_us - request.arrived_us,
            slots=grant.slots,
        )

    def answered(self, request: OwnRequest, link: LinkId, lease: LeaseId, result: LendResult) -> LendAnswered:
        """The helper's whole answer is back."""
        return LendAnswered(
            request=request.new.request,
            model=self._model,
            helper=request.helper,
            link=link,
            lease=lease,
            status=result.status,
            service_us=result.service_us,
            load_us=result.load_us,
        )

    def returned(
        self, request: OwnRequest, link: LinkId, lease: LeaseId, reason: str, *, slots: int, out: int
    ) -> LendReturned:
        """Handed back unstarted. `slots`: of the link's lease now; `out`: requests out over the link now."""
        return LendReturned(
            request=request.new.request,
            model=self._model,
            helper=request.helper,
            link=link,
            lease=lease,
            reason=reason,
            slots=slots,
            out=out,
        )

    def busy(self, request: OwnRequest, link: LinkId, lease: LeaseId) -> LendBusy:
        """The helper's desk was full."""
        return LendBusy(request=request.new.request, model=self._model, helper=request.helper, link=link, lease=lease)

    def relay_refused(self, request: OwnRequest, link: LinkId, lease: LeaseId, reason: str) -> RelayRefused:
        """It could not be passed on."""
        return RelayRefused(
            request=request.new.request,
            model=self._model,
            helper=request.helper,
            link=link,
            lease=lease,
            reason=reason,
        )

    def cut_off(self, request: OwnRequest, link: LinkId, lease: LeaseId, reason: str, *, may_have_run: bool) -> CutOff:
        """The helper is fenced and the request taken back."""
        return CutOff(
            request=request.new.request,
            model=self._model,
            helper=request.helper,
            link=link,
            lease=lease,
            reason=reason,
            may_have_run=may_have_run,
        )

    def native_waited(self, request: OwnRequest) -> NativeWaited:
        """Its service begins, after borrowed work that was inside the engine before it."""
        assert request.began_us is not None, "the wait is known once the service began"
        return NativeWaited(
            request=request.new.request,
            model=self._model,
            borrowed_in_engine=request.behind,
            wait_us=request.began_us - request.arrived_us,
        )

    def snapshot(self, *, held: int, in_engine: int, lent: int, lease: LeaseId | None) -> QueueSnapshot:
        """A sign of life."""
        return QueueSnapshot(model=self._model, held=held, in_engine=in_engine, lent=lent, lease=lease)


def open_request(request: OwnRequest, now_us: int) -> OpenRequest:
    """Return `request` as a snapshot tells it."""
    return OpenRequest(
        request=request.new.request,
        state=request.place,
        work=request.new.work,
        lendable=request.lendable,
        age_us=now_us - request.since_us,
        link=request.link,
        lease=request.lease,
        est_tokens=request.new.est_tokens,
        vision=request.new.vision,
        helper=request.helper,
    )


def _wait_us(request: OwnRequest, service_us: int, now_us: int) -> int:
    """From arrival to the start of service: known for the own engine, what the service leaves of the whole for a helper."""
    if request.began_us is not None:
        return request.began_us - request.arrived_us
    return max(0, now_us - request.arrived_us - service_us)
