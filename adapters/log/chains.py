"""Each producer's own chain: its facts are numbered without gaps in each life of its process, so a missing one shows.

The ledger's chain proves that nothing which was stored has changed; this one shows what never came to be stored.
"""

from collections.abc import Sequence

import msgspec

from domain.events import NodeSnapshot, Registered
from domain.master.inputs import FactInput, FactOrRejected, Rejected
from domain.ports import StoredMessage


class Chain(msgspec.Struct, kw_only=True):
    """The facts of one producer, over all lives of its process that were met."""

    facts: int = 0
    """In turn."""
    incarnations: int = 0
    again: int = 0
    """Sent more than once; readers take the first."""
    jumped: int = 0
    """Numbers that a snapshot of the node stands for: they are not stored, and their sum is in the snapshot."""
    missing: int = 0
    """Numbers that are not stored although later ones of the same life are, and no snapshot stands for them."""
    unreadable: int = 0
    """Surely this producer's, but refused for what it says."""


class ProducerChains:
    """Follows the numbering of every producer; facts are taken in the order of the stream."""

    def __init__(self) -> None:
        self.chains: dict[str, Chain] = {}
        self.versions: dict[str, int] = {}
        """Lives that began with a registration, by the version of Leaseway that it states."""
        self.lives: dict[str, dict[str, _Life]] = {}

    def take(self, judged: Sequence[tuple[FactOrRejected, StoredMessage]]) -> None:
        """Take what the reader made of some messages."""
        for fact, _ in judged:
            if fact.__class__ is FactInput:
                if fact.speaker:
                    self._count(fact.speaker, fact.incarnation, fact.pseq, fact)
            elif isinstance(fact, Rejected) and fact.speaker:
                self._count(fact.speaker, fact.incarnation, fact.pseq, None)

    def _count(self, speaker: str, incarnation: str, pseq: int, fact: FactInput | None) -> None:
        chain = self.chains.get(speaker)
        if chain is None:
            chain = self.chains[speaker] = Chain()
            self.lives[speaker] = {}
        lives = self.lives[speaker]
        life = lives.get(incarnation)
        if life is None:
            # a history that begins in the middle of a life cannot know what was before
            life = lives[incarnation] = _Life(first=pseq, reached=pseq - 1, jumps_in=_is_snapshot(fact))
            if fact is not None and isinstance(fact.fact, Registered):
                self.versions[fact.fact.version] = self.versions.get(fact.fact.version, 0) + 1
        chain.unreadable += fact is None
        if pseq == life.reached + 1 and not life.ahead:
            life.reached = pseq
            chain.facts += 1
        else:
            _out_of_turn(chain, life, pseq, snapshot=_is_snapshot(fact))

    def join(self, later: "ProducerChains") -> None:
        """Add what was met in the part of the stream that follows this one."""
        for version, count in later.versions.items():
            self.versions[version] = self.versions.get(version, 0) + count
        for speaker, theirs in later.chains.items():
            mine = self.chains.setdefault(speaker, Chain())
            for name in ("facts", "again", "jumped", "unreadable"):
                setattr(mine, name, getattr(mine, name) + getattr(theirs, name))
            lives = self.lives.setdefault(speaker, {})
            for incarnation, life in later.lives[speaker].items():
                if incarnation in lives:
                    lives[incarnation].go_on(life, mine)
                else:
                    lives[incarnation] = life

    def finish(self) -> dict[str, Chain]:
        """Return the chain of each producer, what is missing counted."""
        for speaker, chain in self.chains.items():
            chain.incarnations = len(self.lives[speaker])
            chain.missing = sum(life.missing() for life in self.lives[speaker].values())
        return {speaker: self.chains[speaker] for speaker in sorted(self.chains)}


class _Life(msgspec.Struct, kw_only=True):
    first: int
    """The number met first."""
    reached: int
    """All numbers from there up to here were met, or a snapshot stands for them."""
    jumps_in: bool = False
    """What was met first is a snapshot, which stands for all that is before it."""
    ahead: set[int] = set()
    """Numbers met beyond a gap: those are sent again, in order, once what is before them is stored."""
    before: set[int] = set()
    """Numbers before `first` that were met after it: sent again, from where an earlier part has a gap."""
    lost: int = 0
    """Numbers missing before `first` of a later part."""

    def missing(self) -> int:
        return self.lost + (max(self.ahead) - self.reached - len(self.ahead) if self.ahead else 0)

    def go_on(self, later: "_Life", chain: Chain) -> None:
        met = self.ahead | later.before
        between = later.first - 1 - self.reached - sum(self.reached < each < later.first for each in met)
        new = sum(each > self.reached and each not in self.ahead for each in later.before)
        chain.facts, chain.again = chain.facts + new, chain.again - new
        if between > 0 and later.jumps_in:
            chain.jumped += between
        elif between > 0:
            self.lost += between
        self.lost += later.lost
        self.reached = max(self.reached, later.reached)
        self.ahead = {each for each in self.ahead | later.ahead if each > self.reached}


def _out_of_turn(chain: Chain, life: _Life, pseq: int, *, snapshot: bool) -> None:
    if pseq <= life.reached or pseq in life.ahead:
        chain.again += 1
        if pseq < life.first:
            life.before.add(pseq)
        return
    chain.facts += 1
    if snapshot and pseq > life.reached + 1:
        chain.jumped += pseq - life.reached - 1 - sum(life.reached < each < pseq for each in life.ahead)
        life.ahead = {each for each in life.ahead if each > pseq}
        life.reached = pseq
    else:
        life.ahead.add(pseq)
    while life.reached + 1 in life.ahead:
        life.reached += 1
        life.ahead.discard(life.reached)


def _is_snapshot(fact: FactInput | None) -> bool:
    return fact is not None and isinstance(fact.fact, NodeSnapshot) and fact.fact.part == 1
