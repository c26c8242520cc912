"""The master that decides in a simulated cluster: the product's fold and its decisions, without bus, keys and bytes."""

from domain.actions import OrderKey
from domain.events import ControlEvent, Due, Fact, Observation
from domain.events.decision import LeaseEvent, LinkWord
from domain.ids import Generation, Incarnation, NodeId
from domain.master.control import fold_control
from domain.master.decide import Head, decide, finish
from domain.master.fold import fold_fact
from domain.master.health import next_due_us
from domain.master.inputs import ControlInput, FactInput
from domain.master.state import State

_GENERATION = Generation("00010000")
_TERM = 1


class VirtualMaster:
    """Hears facts in their order and says what follows. Its domain time is what the facts' stamps say, as in the product."""

    def __init__(self) -> None:
        self.state = State(term=_TERM)
        self.plans = 0
        self.heard = 0
        """How many facts and observations it has taken."""
        self._control_seq = 0
        self._version = 0

    def decree(self, event: ControlEvent) -> None:
        """Take an operator's event."""
        self._control_seq += 1
        fold_control(self.state, ControlInput(self._control_seq, event))

    def hear(self, speaker: NodeId, incarnation: Incarnation, pseq: int, fact: Fact, now_us: int) -> None:
        """Take the fact number `pseq` of the speaker's life, stamped with `now_us`."""
        self.heard += 1
        given = FactInput(self.heard, now_us, speaker, incarnation, pseq, late=False, term=0, fact=fact)
        fold_fact(self.state, given)

    def observe(self, observation: Observation, now_us: int) -> None:
        """Take what this master saw itself."""
        self.heard += 1
        nobody, none = NodeId(""), Incarnation("")
        fold_fact(self.state, FactInput(self.heard, now_us, nobody, none, 0, late=False, term=_TERM, fact=observation))

    def wake(self, now_us: int) -> None:
        """Notice that time has passed though nobody said anything."""
        stood_us = max(0, now_us - self.state.stamp_us)
        self.observe(Due(elapsed_us=stood_us, since_us=self.state.now_us), now_us)

    def due_in_us(self) -> int | None:
        """Return how long after its newest stamp the earliest timer of the state runs out; None if there is none."""
        due_us = next_due_us(self.state)
        return None if due_us is None else max(0, due_us - self.state.now_us)

    def decide(self) -> list[tuple[LeaseEvent | LinkWord, OrderKey]]:
        """Commit until nothing follows; return what nodes must hear, with its order."""
        said: list[tuple[LeaseEvent | LinkWord, OrderKey]] = []
        while (decided := decide(self.state, Head(_GENERATION, self._version + 1))).decisions:
            finish(self.state)
            self._version += 1
            self.plans += decided.n
            said += [
                (decision, (_GENERATION, self._version, index))
                for index, decision in enumerate(decided.decisions)
                if isinstance(decision, LeaseEvent | LinkWord)
            ]
        return said
