"""`leaseway provision --new-generation` says which masters the operator's word has not led out of safe mode."""

from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from services.cli.provision import tell_masters
from services.cli.reach import Here
from services.config import Config
from services.data_directory import Endpoints


def master(*said: dict[str, str]) -> TestServer:
    """Return a master that says these things of its health, one after another, and the last of them from then on."""
    left = list(said)

    async def answer(_: web.BaseRequest) -> web.Response:
        now = left.pop(0) if len(left) > 1 else left[0]
        return web.json_response(now, status=200 if now["status"] in {"active", "standby"} else 503)

    app = web.Application()
    app.router.add_get("/health", answer)
    return TestServer(app)


DOUBTS = {"status": "safe_mode", "doubt": "ledger: it is empty; not left: whose key is not known here"}
CHECKS = {"status": "starting", "doubt": ""}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ((DOUBTS, CHECKS, {"status": "active", "doubt": ""}), ""),
        ((DOUBTS, CHECKS, {"status": "standby", "doubt": ""}), ""),
        ((DOUBTS,), f"has not left safe mode: {DOUBTS['doubt']}"),
        ((CHECKS, DOUBTS), f"has not left safe mode: {DOUBTS['doubt']}"),
        ((CHECKS,), "is still checking stored history"),
    ],
    ids=["decides", "follows", "stays", "comes back", "checks"],
)
async def test_a_master_that_stays_in_safe_mode_is_named_with_why_and_one_that_does_not_run_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: tuple[dict[str, str], ...], told: str
):
    async with master(*said) as server:
        url = str(server.make_url("")).rstrip("/")
        place = Here(Config(data=tmp_path), Endpoints(master=f"http://127.0.0.1:9,{url}"))
        assert await tell_masters(place, within_s=2 if told else 10) is not bool(told)
    assert capsys.readouterr().err.strip() == (f"the master at {url} {told}" if told else "")
