"""Cost of one model's machines: microseconds of processor time an event, at a queue of 1000 held requests.

python -m tests.bench.bench_machines
"""

import time
from collections.abc import Callable

from domain.engine_room import EngineRoom
from domain.ids import ModelId, NodeId
from domain.inputs import LendResult, RoomConfig, RuntimeConfig
from domain.runtime import ModelRuntime
from tests.bench.arguments import parser_of
from tests.unit.machine_rig import BACK_LINK, LINK, OK, TTL, changed, lease, new, offer, order, rid, runtime

ROUNDS = 20_000
HELD = 1000


def _measure(name: str, events: int, work: Callable[[], None]) -> int:
    began_ns = time.process_time_ns()
    work()
    each_ns = (time.process_time_ns() - began_ns) // events
    print(f"{name:<44}{each_ns / 1000:8.1f} us")
    return each_ns


def _with_held(owner: tuple[str, ...] = (LINK,)) -> ModelRuntime:
    made = runtime(owner=owner, held_max=10 * HELD)
    for number in range(HELD + 2):
        made.submit(new(number), 0)
    return made


def submit_and_finish() -> int:
    """A request comes and one leaves the engine, with 1000 held."""
    made = _with_held()

    def work() -> None:
        for number in range(ROUNDS):
            made.submit(new(HELD + 2 + number), number)
            made.engine_finished(rid(number), OK, number)

    return _measure("submit + finish, 1000 held", ROUNDS, work)


def unenrolled() -> int:
    """The same for a model in no link."""
    made = _with_held(owner=())

    def work() -> None:
        for number in range(ROUNDS):
            made.submit(new(HELD + 2 + number), number)
            made.engine_finished(rid(number), OK, number)

    return _measure("submit + finish, 1000 held, in no link", ROUNDS, work)


def lend_and_answer() -> int:
    """A request comes and a lent one is answered, so that the next is lent, with 1000 held."""
    made = _with_held()
    made.take_lease(lease(ttl_us=1000 * TTL), order(1), 0, 0)
    name = lease().lease

    def work() -> None:
        for number in range(2, ROUNDS + 2):
            made.submit(new(HELD + number), number)
            made.lend_answered(rid(number), name, LendResult(), number)

    return _measure("submit + answer of a lent one, 1000 held", ROUNDS, work)


def cancel_in_the_middle() -> int:
    """A request comes and another one's client leaves, in the middle of 1000 held."""
    made = _with_held()

    def work() -> None:
        for number in range(ROUNDS):
            made.submit(new(HELD + 2 + number), number)
            made.client_gone(rid(HELD // 2 + number), number)

    return _measure("submit + client gone, 1000 held", ROUNDS, work)


def renew() -> int:
    """A lease is renewed."""
    made = _with_held()
    made.take_lease(lease(slots=0), order(1), 0, 0)
    event = changed(slots=0)

    def work() -> None:
        for version in range(2, ROUNDS + 2):
            made.take_lease(event, order(version), version, version)

    return _measure("lease renewed, 1000 held", ROUNDS, work)


def borrow_and_finish() -> int:
    """A lend is offered, its body comes, the engine ends it."""
    made = runtime(owner=(), helper=(BACK_LINK,))

    def work() -> None:
        for number in range(ROUNDS):
            made.borrow(offer(number), number)
            made.borrow_body(rid(number), number)
            made.engine_finished(rid(number), OK, number)

    return _measure("borrow + body + finish", ROUNDS, work)


def keep() -> int:
    """A request comes and a lent one is answered, under a lease with prices on both sides, so that one is always kept."""
    made = runtime(held_max=10 * HELD)
    made.take_lease(lease(slots=1, owner_job_us=100_000_000, work=1000, ttl_us=1000 * TTL), order(1), 0, 0)
    for number in range(HELD + 2):
        made.submit(new(number), 0)
    name = lease().lease

    def work() -> None:
        for number in range(1, ROUNDS + 1):
            made.submit(new(HELD + 1 + number), number)
            made.lend_answered(rid(number), name, LendResult(), number)

    return _measure("the same with one kept for the helper", ROUNDS, work)


def room() -> int:
    """A request comes and one leaves the engine, for the loaded one of eight models that share a runtime."""
    shared = EngineRoom(RoomConfig(node=NodeId("n1"), runtime="gpu"))
    models = [ModelRuntime(RuntimeConfig(node=NodeId("n1"), model=ModelId(f"m{number}"))) for number in range(8)]
    for made in models:
        shared.join(made)
        made.set_links([], [BACK_LINK], 0)
    shared.begin(models[0].model, 0)
    for number in range(HELD + 2):
        models[0].submit(new(number), 0)

    def work() -> None:
        for number in range(ROUNDS):
            models[0].submit(new(HELD + 2 + number), number)
            models[0].engine_finished(rid(number), OK, number)

    return _measure("submit + finish, 8 models in one runtime", ROUNDS, work)


def timers() -> int:
    """The node asks when to wake up."""
    made = _with_held()
    made.take_lease(lease(slots=0), order(1), 0, 0)

    def work() -> None:
        for _ in range(ROUNDS):
            made.next_timer_us()

    return _measure("next_timer_us, 1000 held", ROUNDS, work)


def main() -> None:
    """Print all figures."""
    for bench in (
        submit_and_finish,
        unenrolled,
        lend_and_answer,
        keep,
        room,
        cancel_in_the_middle,
        renew,
        borrow_and_finish,
        timers,
    ):
        bench()


if __name__ == "__main__":
    parser_of(__doc__).parse_args()
    main()
