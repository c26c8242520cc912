"""The simulator's master leaves out bytes, keys and the ledger; what it decides is what the product decides on stored bytes."""

import pytest
from msgspec.structs import replace

from domain.events.decision import LeaseEvent, LinkWord
from domain.events.envelope import Basis
from domain.ids import Incarnation
from services.simulator.product.cluster import Cluster
from services.simulator.product.master import VirtualMaster
from services.simulator.suites import scenario_cells
from tests.support.history import Master, Recorder


class Twins(VirtualMaster):
    """The simulator's master and the product's reading side, which is given the same as stored and signed bytes."""

    def __init__(self):
        super().__init__()
        self.recorder, self.product = Recorder(), Master()
        self.stored = 0
        self.pairs = []

    def decree(self, event):
        super().decree(event)
        self.recorder.decree(event)

    def hear(self, speaker, incarnation, pseq, fact, now_us):
        super().hear(speaker, incarnation, pseq, fact, now_us)
        if pseq == 1 and speaker in self.recorder.pseq:
            self.recorder.restart(speaker)
        self.recorder.now_ns = now_us * 1000
        self.recorder.state(speaker, fact, after_us=0)

    def observe(self, observation, now_us):
        super().observe(observation, now_us)
        self.recorder.now_ns = now_us * 1000
        self.recorder.observe(1, observation, after_us=0)

    def decide(self):
        said = super().decide()
        facts, self.stored = self.recorder.facts[self.stored :], len(self.recorder.facts)
        control, self.recorder.control = self.recorder.control, []
        made = len(self.product.commits)
        self.product.take(facts, control)
        theirs = [
            (decision, (commit.generation, commit.version, index))
            for commit in self.product.commits[made:]
            for index, decision in enumerate(commit.decisions)
            if isinstance(decision, LeaseEvent | LinkWord)
        ]
        self.pairs.append(([unborn(*one) for one in said], [unborn(*one) for one in theirs]))
        return said


def unborn(event, order):
    """Return a decision without the name of the life of the owner's process, which the two give differently."""
    if isinstance(event, LeaseEvent):
        event = replace(event, basis=Basis(event.basis.node, Incarnation(""), event.basis.pseq))
    return event, order


@pytest.mark.parametrize("name", ["a_b10_x1_warm", "h_b50_h2_misest", "k_b50_crash", "u_b50_blackhole"])
def test_the_simulators_master_decides_what_the_product_does_from_stored_bytes(name):
    twins = Twins()
    (cell,) = scenario_cells(name)
    Cluster(cell.draw(1000), master=twins).run()
    pairs = twins.pairs
    assert [ours for ours, _ in pairs] == [theirs for _, theirs in pairs]
    assert sum(len(ours) for ours, _ in pairs) >= 4
    assert twins.product.commits[-1].rejected == ()
