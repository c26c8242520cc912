"""What a person at a terminal sees of nodes, of the demo's requests, and of a cluster that is not theirs."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from domain.errors import UnreachableError
from domain.events.lend import Lent
from domain.ids import LeaseId, LinkId, ModelId, NodeId, RequestId
from services.cli.demo_burst import Answer
from services.cli.demo_run import told_answer
from services.cli.nodes import show
from services.cli.reach import Here, master_state
from services.cli.show import Output
from services.config_file import load_config
from services.data_directory import Endpoints

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


def test_a_node_is_one_line_of_a_terminal_of_80_columns_and_says_that_its_model_is_not_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show([_NODE], Output(as_json=False))
    text = capsys.readouterr().out
    assert "loaded" in text
    [line] = [line for line in text.splitlines() if "studio" in line]
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


class Master(BaseHTTPRequestHandler):
    """A master that follows; of whichever data directory."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"mode":"active"}')

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def stranger() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Master) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def test_what_another_data_directory_s_cluster_says_is_not_told_of_one_on_which_nothing_ever_ran(
    stranger: str, tmp_path: Path
) -> None:
    def state(data: Path, environment: dict[str, str] | None = None) -> object:
        config = load_config(None, data=data, environment={"HOME": str(tmp_path), **(environment or {})})
        return asyncio.run(master_state(Here(config, Endpoints(master=stranger))))

    with pytest.raises(
        UnreachableError, match=r"data directory .*none: nothing ever ran on it; .* another one with --data"
    ):
        state(tmp_path / "none")
    assert state(tmp_path) == {"mode": "active"}
    assert state(tmp_path / "none", {"LEASEWAY_URLS_MASTER": stranger}) == {"mode": "active"}, (
        "who is configured is asked"
    )
