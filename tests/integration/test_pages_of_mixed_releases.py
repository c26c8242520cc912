"""What the console shows where a process answers otherwise than this release does: a page that says so, with its banners."""

import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from services.console.peers import STATE
from tests.support.console_pages import look
from tests.support.console_peers import Peer, console, serving, state, well

DOUBT = "version 7 does not follow version 6"
WINDOW = {"step": 60, "from": 0, "to": 60, "truncated": False, "source": "rows"}
NODE = {"node": "n1", "models": []}


@pytest.mark.parametrize(
    ("page", "path", "said"),
    [
        ("/", STATE, {"mode": "safe_mode"}),
        ("/", STATE, state(nodes=[NODE])),
        ("/", STATE, {name: each for name, each in state().items() if name != "term"}),
        ("/decisions", "/admin/v1/decisions", {"rows": []}),
        ("/decisions", "/admin/v1/decisions", {"decisions": [{"kind": "not yet thought of", "at_ns": 0}]}),
        ("/why?of=7", "/admin/v1/why/commit/7", {"headline": "it was so"}),
        ("/at?moment=7", "/admin/v1/at", ["it was so"]),
        ("/telemetry?question=waits", "/admin/v1/telemetry/waits", {"waits": []}),
        ("/telemetry?question=waits", "/admin/v1/telemetry/waits", {"waits": [{"t": 0, "owner": "n1"}], **WINDOW}),
    ],
)
async def test_an_answer_of_another_form_is_said_on_a_page_that_keeps_its_banners(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, page: str, path: str, said: Any
):
    health = {"/health": well(status="safe_mode", doubt=DOUBT)}
    async with (
        serving(Peer({**health, path: said})) as master,
        serving(Peer({"/health": {"status": "ok"}, path: said})) as other,
        console(tmp_path, master=master.url, projector=other.url, gateway=other.url) as url,
        aiohttp.ClientSession() as client,
    ):
        with caplog.at_level(logging.ERROR):
            seen = await look(client, url + page)
    assert seen.status == 502
    assert seen.banners[0].weight == "alarm"
    assert DOUBT in seen.banners[0].text
    assert "another form than is read here" in seen.banners[-1].text
    assert [record.message for record in caplog.records] == ["answer_not_understood"]
    assert caplog.records[0].exc_info is not None, "an operator sees what was missed"
