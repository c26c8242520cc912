"""One of everything that the projections make a row of, as the nodes and the master state it."""

from typing import Any

import msgspec

from domain.events import (
    Accepting,
    BorrowReturned,
    BreakerChanged,
    Checkpoint,
    CutOff,
    Decision,
    Draining,
    FactsSummarised,
    HeartbeatMissed,
    HeartbeatSeen,
    Input,
    Kept,
    LeaseChanged,
    LeaseChecked,
    LeaseCleared,
    LeaseGranted,
    LeaseRefused,
    LeaseStalled,
    LeaseUpdated,
    LendAnswered,
    LendBusy,
    LendReturned,
    LinkPriced,
    Loaded,
    LoadFailed,
    LoadStarted,
    NativeWaited,
    NodeHealthChanged,
    NotAccepting,
    Observation,
    Registered,
    RelayRefused,
    RequestOrphaned,
    RequestPresumedLost,
    RestoreCancelled,
    Restored,
    RestoreScheduled,
    SafeModeLeft,
    StillRunning,
    Stopped,
    Unloaded,
)
from domain.ids import ModelId
from tests.support.facts import (
    CLUSTER,
    GENERATION,
    HELPER,
    LINK,
    MODEL,
    OWNER,
    granted,
    lease,
    lent,
    plan,
    request,
    verdict,
)

OTHER = ModelId("llama/8b")
ENDS: dict[str, Any] = {
    "link": LINK,
    "owner": OWNER,
    "owner_model": MODEL,
    "helper": HELPER,
    "helper_model": MODEL,
}
LENDING: dict[str, Any] = {
    "request": request(1),
    "model": MODEL,
    "helper": HELPER,
    "link": LINK,
    "lease": lease(),
}
BORROWING: dict[str, Any] = {
    "request": request(1),
    "model": MODEL,
    "owner": OWNER,
    "link": LINK,
    "lease": lease(),
}


def _as(kind: type[LeaseGranted | LeaseChanged | LeaseCleared], **changed: Any) -> Decision:
    stated = {name: getattr(granted(), name) for name in granted().__struct_fields__}
    return kind(**(stated | changed))


DECISIONS: tuple[Decision, ...] = (
    plan(
        msgspec.structs.replace(
            verdict(outcome="skipped", code="helper_recently_busy", slots=0),
            back_us=9_000_000,
            ready_us=4_000_000,
            samples=17,
            probe_in_us=2_500_000,
            out=1,
            idle_us=500_000,
            switch_us=3_000_000,
        )
    ),
    _as(LeaseGranted, owner_job_us=2_000_000, work=64_000_000, ready_us=750_000, context=8192, vision=True),
    _as(LeaseChanged, slots=3, reason="renewed"),
    _as(LeaseCleared, slots=0, reason="cost_rejected"),
    LinkPriced(**ENDS, faster=True, job_us=1_000_000, owner_job_us=2_000_000, work=64_000_000),
    LeaseChecked(**ENDS, quiet_us=180_000_000),
    LeaseStalled(**ENDS, quiet_us=185_000_000),
    BreakerChanged(helper=HELPER, model=MODEL, state="opened", failures=3, quarantine_us=15_000_000),
    NodeHealthChanged(node=HELPER, state="unhealthy", reason="heartbeat_missed"),
    RequestPresumedLost(node=OWNER, model=MODEL, request=request(7)),
    RequestOrphaned(node=OWNER, model=MODEL, request=request(7)),
    SafeModeLeft(reason="looked", old_generation="a", old_version=1, old_digest="b"),
)
"""Every decision that a master states."""

OWNERS: tuple[Input, ...] = (
    LeaseUpdated(link=LINK, lease=lease(), model=MODEL, helper=HELPER, slots=2, out=1),
    LeaseUpdated(link=LINK, lease=lease(), model=MODEL, helper=HELPER, slots=0, out=1),
    LeaseRefused(link=LINK, lease=lease(), reason="expired", model=MODEL, helper=HELPER, slots=2, out=1),
    Kept(
        request=request(2),
        model=MODEL,
        helper=HELPER,
        link=LINK,
        owner_finish_us=9_000_000,
        helper_finish_us=5_000_000,
        waited_us=1_200_000,
        owner_job_us=4_000_000,
        helper_job_us=1_000_000,
    ),
    msgspec.structs.replace(lent(1), slots=2),
    LendAnswered(**LENDING, status=200, service_us=900_000, load_us=100_000),
    LendReturned(**LENDING, reason="own_work", slots=2, out=1),
    LendBusy(**LENDING),
    CutOff(**LENDING, reason="stalled", may_have_run=True),
    RelayRefused(**LENDING, reason="helper_unreachable"),
)
"""Every fact of an owner for the decision log."""

HELPERS: tuple[Input, ...] = (
    NativeWaited(request=request(3), model=MODEL, borrowed_in_engine=2, wait_us=4_000_000),
    BorrowReturned(**BORROWING, reason="own_work", after_arrival=True),
    StillRunning(**BORROWING, running_us=200_000_000),
)
"""Every fact of a helper for the decision log."""

LOADS: tuple[Input, ...] = (
    LoadStarted(model=MODEL, cause="borrowed"),
    Loaded(model=MODEL, cause="borrowed", load_us=8_000_000, displaced=OTHER),
    LoadFailed(model=MODEL, cause="own", reason="no_memory"),
    Unloaded(model=OTHER, cause="borrowed"),
    RestoreScheduled(model=OTHER, delay_us=1_500_000),
    Restored(model=OTHER, load_us=7_000_000),
    RestoreCancelled(model=OTHER, reason="own_work"),
)
"""Every fact about what an engine holds."""

CONDITIONS: tuple[Input, ...] = (
    Registered(url="http://h", models=(), version="0.1.0", depth=2),
    Accepting(model=MODEL),
    NotAccepting(model=MODEL, reason="restoring"),
    Draining(),
    Stopped(),
    FactsSummarised(counts={"lend.lent": 2, "queue.held": 17}, first_pseq=9, last_pseq=9),
)
"""Every fact about how a node is."""

CHECKPOINT = Checkpoint(
    cluster=CLUSTER,
    generation=GENERATION,
    version=9,
    digest="ab" * 16,
    hi=40,
    chi=3,
    state="cd" * 16,
    tail_hi=44,
    tail_chi=4,
    tail="ef" * 16,
    at_us=1,
    public="U" * 56,
    signature="12" * 64,
)

SEEN: tuple[Observation, ...] = (
    HeartbeatMissed(node=HELPER, silent_us=6_000_000),
    HeartbeatSeen(node=HELPER),
    CHECKPOINT,
)
"""Every observation that rows are made of."""
