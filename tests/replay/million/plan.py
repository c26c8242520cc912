"""What is asked of a long life, and what came of it."""

from collections.abc import Callable

import msgspec

Progress = Callable[[int, str], None]
"""Takes how many events are decided about, and a few words."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for."""

    events: int
    seed: int = 1
    nodes: int = 40
    kills: int = 3
    """How often the master is killed on the way."""
    job_s: float = 0.02
    """Mean service time at a node of speed 1: shorter jobs are more events a second."""
    end_s: float = 20.0
    """How long the last requests have to end."""


class Lived(msgspec.Struct, kw_only=True):
    """What came of it."""

    events: int
    commits: int
    decisions: dict[str, int]
    troubles: dict[str, int]
    requests: int
    lent: int
    took_s: float
    """Of real time on a bus, of virtual time without one."""
    stood_s: float
    """How long the nodes' time stood still because bus or master could not follow."""
