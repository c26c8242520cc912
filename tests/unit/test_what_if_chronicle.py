"""What facts say of arrivals, services and the control path, each on the clock of the one who measured it."""

from collections.abc import Iterator
from itertools import count

import pytest

from domain.events import (
    Basis,
    BorrowAccepted,
    BorrowFinished,
    Cancelled,
    Expired,
    Fact,
    Finished,
    LeaseUpdated,
    LendAnswered,
    Lent,
    Loaded,
    LoadStarted,
)
from domain.ids import Incarnation, LeaseId, LinkId, ModelId, NodeId, RequestId
from domain.master.inputs import FactInput
from services.simulator.whatif.chronicle import CONTROL_US, HOP_US, Chronicle, Decided, Stretch, busy
from tests.support.history import borrow, finished, held, lend, link

T_US = 1_790_000_000_000_000
OVER = link("a", "b")


class Speakers:
    """States facts of nodes whose clocks began at different times, and which reach the stream late."""

    def __init__(self, decided: dict[LeaseId, list[Decided]] | None = None) -> None:
        self.heard = Chronicle(decided or {})
        self._began_us = {"a": 5_000, "b": 70_000_000}
        self._numbers: Iterator[int] = count(1)

    def say(self, node: str, at_us: int, fact: Fact, *, late_us: int = 0) -> int:
        number = next(self._numbers)
        given = FactInput(
            number,
            T_US + at_us + late_us,
            NodeId(node),
            Incarnation(f"{node}-1"),
            number,
            late=False,
            term=0,
            fact=fact,
        )
        self.heard.hear(given, self._began_us[node] + at_us)
        return number


def _ended(
    request: str, *, wait_us: int, service_us: int, helper: str = "", kind: type[Finished | Cancelled] = Finished
) -> Fact:
    return kind(
        request=RequestId(request),
        model=ModelId("m"),
        work=5,
        wait_us=wait_us,
        service_us=service_us,
        status=200,
        helper=helper,
    )


def test_a_request_came_when_its_owner_says_however_late_its_facts_were_stored():
    said = Speakers()
    said.say("a", 0, held("r1"))
    said.say("a", 4_000_000, _ended("r1", wait_us=1_000_000, service_us=3_000_000), late_us=900_000)
    (one,) = said.heard.asked()
    assert (one.at_us, one.ended_us) == (T_US, T_US + 4_000_000)
    assert (one.key, one.ran_at, one.service_us) == ("a/m", ("a", "m"), 3_000_000)


def test_a_lent_request_was_served_by_its_helpers_model_though_the_streams_have_no_order():
    said = Speakers()
    said.say("a", 0, held("r1", lendable=False))
    said.say("a", 3_000_000, _ended("r1", wait_us=0, service_us=3_000_000, helper="b"))
    said.say("b", 100, borrow(BorrowAccepted, "r1", link("a", "b", "m-big"), position=0))
    (one,) = said.heard.asked()
    assert one.ran_at == ("b", "m-big")
    assert not one.not_lendable, "only what the request itself forbids counts"


def test_a_client_that_left_is_remembered_with_the_time_that_it_waited_and_others_are_counted():
    said = Speakers()
    said.say("a", 5_000_000, _ended("r1", wait_us=5_000_000, service_us=0, kind=Cancelled))
    said.say("a", 6_000_000, Expired(request=RequestId("r2"), model=ModelId("m"), status=504))
    (one,) = said.heard.asked()
    assert one.gone
    assert one.ended_us - one.at_us == 5_000_000
    assert said.heard.unserved(T_US, T_US + 7_000_000) == {"expired": 1}
    assert said.heard.unserved(T_US, T_US + 1_000_000) == {}


def test_a_way_is_half_of_what_the_helpers_time_leaves_of_the_owners():
    said = Speakers()
    said.say("a", 0, lend(Lent, "r1", OVER, work=5, out=1, waited_us=0))
    said.say("a", 1_010_000, lend(LendAnswered, "r1", OVER, status=200, service_us=900_000))
    said.say("b", 4_000, borrow(BorrowAccepted, "r1", OVER, position=0))
    said.say("b", 1_000_000, borrow(BorrowFinished, "r1", OVER, work=5, service_us=900_000, status=200, ok=True))
    assert said.heard.paths(T_US + 10**9).hop_us == (1_010_000 - 996_000) // 2


def test_a_decision_took_from_the_fact_that_it_cites_to_the_lease_that_the_owner_took():
    lease, cited = LeaseId("l"), Basis(NodeId("a"), Incarnation("a-1"), 1)
    later = Basis(NodeId("a"), Incarnation("a-1"), 3)
    said = Speakers({lease: [(2, cited), (1, None), (0, later)]})

    def taken(slots: int) -> Fact:
        return LeaseUpdated(link=LinkId("x"), lease=lease, model=ModelId("m"), helper=NodeId("b"), slots=slots, out=0)

    assert said.say("a", 0, held("r1")) == 1
    said.say("a", 30_000, taken(2))
    assert said.say("a", 50_000, held("r2")) == 3
    said.say("a", 55_000, taken(1))  # a tick led to it
    said.say("a", 60_000, taken(0))
    said.say("a", 99_000, taken(0))  # ran out: no decision
    paths = said.heard.paths(T_US + 10**9)
    assert (paths.control_us, paths.measured) == (20_000, 2)
    before = said.heard.paths(T_US + 40_000)
    assert (before.control_us, before.measured) == (30_000, 1)


def test_without_a_lease_or_a_lend_the_delays_are_those_of_the_scenarios():
    paths = Speakers().heard.paths(T_US)
    assert (paths.control_us, paths.hop_us, paths.measured) == (CONTROL_US, HOP_US, 0)


@pytest.mark.parametrize(("cause", "owner"), [("borrowed", "a/m"), ("restore", "a/m"), ("own", "b/m")])
def test_a_load_is_for_the_owner_whose_work_caused_it(cause: str, owner: str):
    said = Speakers()
    said.say("a", 0, held("r1"))
    said.say("b", 10, borrow(BorrowAccepted, "r1", OVER, position=0))
    said.say("b", 20, LoadStarted(model=ModelId("m"), cause=cause))
    said.say("b", 1_000_000, Loaded(model=ModelId("m"), load_us=900_000, cause=cause))
    (load,) = said.heard.loads()
    assert (load.node, load.owner, load.load_us) == ("b", owner, 900_000)


def test_a_busy_time_lasts_while_a_request_is_open():
    said = Speakers()
    for request, began, ended in (("r1", 0, 4), ("r2", 1, 2), ("r3", 3, 6), ("r4", 9, 10)):
        service_us = (ended - began) * 1_000_000
        said.say("a", ended * 1_000_000, finished(request, service_us=service_us))
    times = [
        ((each.begin_us - T_US) // 1_000_000, (each.end_us - T_US) // 1_000_000) for each in busy(said.heard.asked())
    ]
    assert times == [(0, 6), (9, 10)]
    assert busy([]) == list[Stretch]()
