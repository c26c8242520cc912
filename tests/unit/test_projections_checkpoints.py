"""Signed checkpoints as rows: whole, so that a signature can be checked from them, and of the master's own subject alone."""

import msgspec
import pytest
from msgspec.structs import asdict

from domain.events import HeartbeatSeen, Input
from domain.ports import StoredMessage
from domain.subjects import EVENTS, observation_subject
from projections.project import Context, Projected, project
from projections.tables import column_names
from tests.support.facts import CLUSTER, HELPER, Teller
from tests.support.kinds import CHECKPOINT

SAID = msgspec.structs.replace(CHECKPOINT, at_us=1_796_000_000_000_000)


def projected(fact: Input, subject: str = "") -> Projected:
    message = StoredMessage(7, 70, subject or observation_subject(CLUSTER, 2, fact), b"", Teller("master").body(fact))
    return project(EVENTS, 3, [message], Context(router="test"))


def test_a_row_states_everything_that_the_signature_covers_and_its_place():
    [row] = projected(SAID).rows["checkpoints"]
    place = {"stream": EVENTS, "epoch": 3, "seq": 7, "at_ns": 70}
    assert dict(zip(column_names("checkpoints"), row, strict=True)) == place | asdict(SAID) | {"router": "test"}


@pytest.mark.parametrize(
    ("fact", "subject"),
    [(HeartbeatSeen(node=HELPER), ""), (SAID, f"lw.{CLUSTER}.node.n1.obs.x.checkpoint")],
    ids=["another observation", "a checkpoint in a node's own subject"],
)
def test_nothing_else_is_a_row(fact: Input, subject: str):
    assert "checkpoints" not in projected(fact, subject).rows
