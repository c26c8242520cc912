"""What an owner shows with a lend: read only if it has the form of what it claims to be."""

import pytest

from adapters.keys import Signer, new_nkey
from domain.catalogue.work import WORK_MAX
from domain.ids import LeaseId, LinkId, ModelId, NodeId, RequestId
from services.lend_head import BadLendError, LendHead, opened, sealed


def head(**other: object) -> LendHead:
    stated: dict[str, object] = {
        "request": RequestId(f"req_{7:032x}"),
        "lease": LeaseId("0001beef-1-0"),
        "link": LinkId("0" * 16),
        "owner": NodeId("n1"),
        "helper": NodeId("n2"),
        "model": ModelId("m"),
        "path": "/v1/chat/completions",
        "work": 1,
        "remaining_ms": 1000,
        "size_bytes": 2,
        "body_sha256": "0" * 64,
    }
    return LendHead(**{**stated, **other})  # type: ignore[arg-type]


def shown(made: LendHead) -> LendHead:
    return opened(sealed(made, Signer(new_nkey()[0]), b"grant"))[0]


@pytest.mark.parametrize("fine", [{}, {"work": WORK_MAX}, {"work": 0}, {"remaining_ms": -5}])
def test_what_is_sealed_is_read_again(fine: dict[str, object]):
    assert shown(head(**fine)) == head(**fine)


@pytest.mark.parametrize(
    "wrong",
    [
        {"request": "what the prompt says"},
        {"request": f"req_{7:032x}\n"},
        {"request": "req_" + "F" * 32},
        {"work": -1},
        {"work": WORK_MAX + 1},
        {"remaining_ms": 1 << 60},
    ],
)
def test_what_no_owner_of_ours_would_say_is_refused_before_it_can_become_a_fact_of_the_helper(wrong: dict[str, object]):
    with pytest.raises(BadLendError, match="cannot be read"):
        shown(head(**wrong))
