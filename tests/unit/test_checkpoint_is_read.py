"""A checkpoint that the master says of the ledger is an observation like any other: read, and of no weight in a decision."""

import pytest

from adapters.log import bounds
from adapters.log.reader import Reader
from domain.events import Checkpoint
from domain.ids import Generation
from domain.master.inputs import FactInput, Rejected
from domain.ports import StoredMessage
from domain.subjects import observation_subject
from tests.support.history import CLUSTER, SECRET, envelope

TODAY_US = 1_795_000_000_000_000


def said(at_us: int) -> StoredMessage:
    checkpoint = Checkpoint(
        cluster=CLUSTER, generation=Generation("00010000"), version=7, digest="0" * 32, hi=70, chi=3, at_us=at_us
    )
    body = envelope("master", "m", 1, checkpoint)
    return StoredMessage(1, TODAY_US * 1000, observation_subject(CLUSTER, 1, checkpoint), b"", body)


@pytest.mark.parametrize("at_us", [TODAY_US, bounds.MOMENT_MAX])
def test_a_checkpoint_of_today_is_believed(at_us: int):
    judged = Reader(CLUSTER, SECRET).fact(said(at_us))
    assert isinstance(judged, FactInput)
    assert isinstance(judged.fact, Checkpoint)


@pytest.mark.parametrize("at_us", [-1, bounds.MOMENT_MAX + 1])
def test_one_of_no_year_that_we_shall_see_is_refused(at_us: int):
    judged = Reader(CLUSTER, SECRET).fact(said(at_us))
    assert isinstance(judged, Rejected)
    assert judged.code == "out_of_bounds"
