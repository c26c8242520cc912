"""Short words for driving a ModelRuntime in tests: what it was told, what it answered."""

from typing import Any, cast

from domain.actions import Output
from domain.events import Basis, LeaseChanged, LeaseCleared, LeaseGranted
from domain.ids import Incarnation, LeaseId, LinkId, ModelId, NodeId, RequestId
from domain.inputs import BorrowOffer, EngineResult, NewRequest, RuntimeConfig
from domain.runtime import ModelRuntime

MODEL = ModelId("tiny")
LINK, OTHER_LINK, BACK_LINK = LinkId("aaaa"), LinkId("bbbb"), LinkId("cccc")
SECOND = 1_000_000
TTL = 30 * SECOND


def rid(number: int) -> RequestId:
    return RequestId(f"r{number}")


def new(number: int, **changes) -> NewRequest:
    return NewRequest(**{"request": rid(number), "work": 1000, **changes})


def runtime(*, owner=(LINK,), helper=(), **changes) -> ModelRuntime:
    made = ModelRuntime(RuntimeConfig(node=NodeId("n1"), model=MODEL, **changes))
    made.set_links(owner, helper, 0)
    return made


def lease(kind=LeaseGranted, link=LINK, *, slots=2, job_us=SECOND, name="l1", ttl_us=TTL, **changes):
    return kind(
        link=link,
        owner=NodeId("n1"),
        owner_model=MODEL,
        helper=NodeId(f"h-{link}"),
        helper_model=ModelId("x"),
        helper_url="http://h",
        lease=LeaseId(name),
        slots=slots,
        ttl_us=ttl_us,
        basis=Basis(NodeId("n1"), Incarnation("0"), 1),
        job_us=job_us,
        **changes,
    )


def cleared(link=LINK, name="l1") -> LeaseCleared:
    return cast("LeaseCleared", lease(LeaseCleared, link, slots=0, name=name))


def changed(link=LINK, **changes) -> LeaseChanged:
    return cast("LeaseChanged", lease(LeaseChanged, link, **changes))


def word(kind, link=LINK, **changes):
    """Return another word of the master on a link: LinkPriced, LeaseChecked or LeaseStalled."""
    ends = {"owner": NodeId("n1"), "owner_model": MODEL, "helper": NodeId(f"h-{link}"), "helper_model": ModelId("x")}
    return kind(link=link, **ends, **changes)


def order(version: int) -> tuple[str, int, int]:
    return ("00010000", version, 0)


def offer(number: int, **changes) -> BorrowOffer:
    fields = {
        "request": rid(number),
        "owner": NodeId("n2"),
        "link": BACK_LINK,
        "lease": LeaseId("b1"),
        "work": 500,
        "slots": 2,
        "remaining_us": TTL,
    }
    return BorrowOffer(**{**fields, **changes})


OK = EngineResult(status=200)


def told(outputs: list[Output]) -> list[str]:
    """Return outputs as short text: the kind and the request's number."""
    return [f"{type(output).__name__} {getattr(output, 'request', '')}".strip() for output in outputs]


def of(outputs: list[Output], kind):
    """Return the only output of `kind`."""
    found = [output for output in outputs if type(output) is kind]
    assert len(found) == 1, outputs
    return found[0]


def facts(outputs: list[Output], kind) -> list[Any]:
    return [output for output in outputs if type(output) is kind]
