"""What a verification found, in the form in which an auditor keeps it."""

from collections.abc import Mapping
from typing import Final

import msgspec

from adapters.log.chains import Chain
from domain.events.commit import Commit

FORMAT: Final = "leaseway-report/1"
MET_MAX: Final = 50
"""Checkpoints that are named one by one."""


class Difference(msgspec.Struct, frozen=True):
    """One place where stored history is not what deciding again gives."""

    version: int
    """Of the commit; 0 if it concerns no commit."""
    place: str
    """ledger, events, control, snapshot, checkpoint, feed or copy."""
    detail: str
    stored: str = ""
    """The field that differs first, as it is stored."""
    decided: str = ""
    """The same, as deciding again gives it."""


class Met(msgspec.Struct, frozen=True, kw_only=True):
    """A signed checkpoint of the versions verified."""

    version: int
    digest: str
    at_us: int
    """When it was signed (the master's clock, since the epoch)."""
    fingerprint: str
    """Of the key that signed it."""
    source: str
    """Where it is kept: directory, stream or copy."""


class Report(msgspec.Struct, kw_only=True):
    """What a verification found."""

    format: str = FORMAT
    software: str = ""
    """Version of Leaseway that verified."""
    cluster: str = ""
    source: str = ""
    """What was read: the bus, the archive, or a copy."""
    generation: str = ""
    commits: int = 0
    """Commits decided again."""
    followed: int = 0
    """Commits before them that were only applied, their digests checked, to reach the state that they begin in."""
    facts: int = 0
    control: int = 0
    first_version: int = 0
    last_version: int = 0
    first_ns: int = 0
    """Stamp of the first and of the last commit decided again, nanoseconds since the epoch; 0 if there is none."""
    last_ns: int = 0
    begin: str = ""
    """In which state it began: the beginning, or a snapshot and the commit that vouches for it."""
    segments: int = 1
    """Parts verified apart; each ended in the very state in which the next began."""
    generations: list[str] = []
    """Generations that were begun within what was verified."""
    begun: dict[str, str] = {}
    """Who began them and the one that it begins in, and why, where the signature of their first commit says so."""
    policies: dict[str, int] = {}
    """Commits by policy."""
    versions: dict[str, int] = {}
    """Nodes that registered, by the version of Leaseway that they said they run."""
    decisions: dict[str, int] = {}
    """Decisions by kind."""
    rejected: dict[str, int] = {}
    """Inputs that the reader refused, by code."""
    producers: dict[str, Chain] = {}
    """The producers' own numbering; empty if it was not followed."""
    feed: int = 0
    """Messages of the public feed that were compared with what the ledger decided."""
    checkpoints: list[Met] = []
    """Signed checkpoints that agree with what was verified, at most the newest 50."""
    checkpoints_met: int = 0
    keys: dict[str, str] = {}
    """Fingerprint -> public key that signed checkpoints or the copy."""
    differences: list[Difference] = []
    stopped: str = ""
    """Why it could not go on although nothing differs: a policy that this version does not have."""
    left_out: str = ""
    """Versions that were asked for and not decided again, as `1 to 155`; empty if none."""
    unchecked: list[str] = []
    """What could not be checked here, and why."""
    digest: str = ""
    """Of the last commit verified."""
    state: str = ""
    """Digest of the state after it, where that was asked for."""

    @property
    def clean(self) -> bool:
        """Tell whether stored history is exactly what its inputs give."""
        return not self.differences and not self.stopped

    @property
    def missing(self) -> int:
        """Return how many facts producers have numbered that are not stored."""
        return sum(chain.missing for chain in self.producers.values())

    def line(self) -> str:
        """Return the one line for people."""
        told = f"audit verify: {self.commits} commits, {len(self.differences)} differences"
        if self.missing:
            told += f", {self.missing} facts numbered by their nodes and never stored"
        if self.left_out:
            told += f", versions {self.left_out} not decided again"
        return f"{told}; stopped: {self.stopped}" if self.stopped else told

    def count(self, stored: Commit, stamp_ns: int) -> None:
        """Count a commit that was decided again."""
        if not self.commits:
            self.first_ns = stamp_ns
        self.commits += 1
        self.facts += stored.hi - stored.lo
        self.control += stored.chi - stored.clo
        self.last_version, self.digest, self.last_ns = stored.version, stored.digest, stamp_ns
        _add(self.policies, stored.policy)
        for decision in stored.decisions:
            _add(self.decisions, type(decision).__name__)
        for _, code in stored.rejected:
            _add(self.rejected, code)

    def join(self, later: "Report") -> None:
        """Add the report of the segment that follows this one."""
        if not self.commits:
            self.first_version, self.first_ns = later.first_version, later.first_ns
        for name in ("commits", "followed", "facts", "control", "segments"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.last_version = max(self.last_version, later.last_version)
        self.last_ns, self.digest = later.last_ns or self.last_ns, later.digest or self.digest
        self.state, self.generation = later.state, later.generation or self.generation
        self.generations += later.generations
        self.checkpoints = [*self.checkpoints, *later.checkpoints][-MET_MAX:]
        self.checkpoints_met += later.checkpoints_met
        self.keys |= later.keys
        for mine, theirs in (
            (self.policies, later.policies),
            (self.decisions, later.decisions),
            (self.rejected, later.rejected),
        ):
            for key, count in theirs.items():
                _add(mine, key, count)
        self.differences += later.differences
        self.stopped = self.stopped or later.stopped


def _add(counts: dict[str, int], key: str, count: int = 1) -> None:
    counts[key] = counts.get(key, 0) + count


def total(counts: Mapping[str, int]) -> int:
    """Return the sum of some counts."""
    return sum(counts.values())
