"""What a person at a terminal sees of nodes, and of the demo's requests."""

import sys

import pytest

from domain.events.lend import Lent
from domain.ids import LeaseId, LinkId, ModelId, NodeId, RequestId
from services.cli.demo_burst import Answer
from services.cli.demo_run import told_answer
from services.cli.nodes import show
from services.cli.show import Output

_MODEL = {
    "id": "chat-attic",
    "engine": "llama.cpp",
    "ready": False,
    "held": 12,
    "in_engine": 2,
    "lent": 0,
    "samples": 50,
}
_NODE = {"node": "studio", "health": "healthy", "depth": 2, "url": "http://127.0.0.1:8100", "models": [_MODEL]}


def test_a_node_is_one_line_of_a_terminal_of_80_columns_and_says_that_its_engine_is_down(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show([_NODE], Output(as_json=False))
    [line] = [line for line in capsys.readouterr().out.splitlines() if "studio" in line]
    assert line.split() == ["studio", "healthy", "chat-attic", "llama.cpp", "no", "12", "2", "0", "50"]


def answer(by: str) -> Answer:
    return Answer(number=8, request="req_8", status=200, model="chat", served_by=by, seconds=28.84)


def test_the_demo_says_of_a_request_that_came_back_from_the_helper_who_answered_it() -> None:
    lent = Lent(
        request=RequestId("req_8"), model=ModelId("chat"), helper=NodeId("attic"), link=LinkId("l"), lease=LeaseId("v-2-1"),
        out=1, slots=2, waited_us=10_200_000, work=1,
    )  # fmt: skip
    where = "lent to attic under lease v-2-1, after 10.2 s in the queue"
    assert told_answer(answer("attic"), lent) == f"  request  8   28.84 s  {where}  req_8"
    assert told_answer(answer("studio"), lent) == f"  request  8   28.84 s  {where}; came back, by studio itself  req_8"
    assert told_answer(answer("studio"), None) == "  request  8   28.84 s  by studio itself  req_8"
