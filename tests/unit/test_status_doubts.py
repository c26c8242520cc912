"""`leaseway status` has all that a master in safe mode says, also where another decides; and of the bus only that it is gone."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from services.cli.main import main

DOUBT = "ledger: it is empty, but the data directory has seen version 9; " + "x" * 300 + " bring it master.json again"


def master(status: str, doubt: str = "", **more: object) -> TestServer:
    async def health(_: web.BaseRequest) -> web.Response:
        well = status in {"active", "standby"}
        return web.json_response({"status": status, "doubt": doubt, **more}, status=200 if well else 503)

    async def state(_: web.BaseRequest) -> web.Response:
        return web.json_response({"mode": status, "safe_mode": status == "safe_mode", "nodes": [], "links": []})

    app = web.Application()
    app.router.add_get("/health", health)
    app.router.add_get("/admin/v1/state", state)
    return TestServer(app)


async def told(
    folder: Path, capsys: pytest.CaptureFixture[str], *masters: TestServer
) -> tuple[int, str, list[dict[str, Any]]]:
    for each in masters:
        await each.start_server()
    urls = ",".join(str(each.make_url("")).rstrip("/") for each in masters)
    config, nowhere = folder / "leaseway.toml", "http://127.0.0.1:9"
    config.write_text(
        f'[bus]\nurl = "nats://127.0.0.1:9"\n[urls]\nmaster = "{urls}"\nprojector = "{nowhere}"\ngateway = "{nowhere}"\n'
    )
    asked = ["status", "--json", "--data", str(folder / "data"), "--config", str(config)]
    code = await asyncio.to_thread(main, asked)
    for each in masters:
        await each.close()
    captured = capsys.readouterr()
    rows = [json.loads(line) for line in captured.out.splitlines()]
    masters_rows = [row for row in rows if row.get("process") == "master" and "well" in row]
    assert masters_rows
    return code, captured.err, masters_rows


@pytest.mark.parametrize(
    ("masters", "says", "keeps_quiet_about"),
    [
        (["safe_mode"], ["grants nothing, since stored history is in doubt: " + DOUBT, "--new-generation"], ["answer"]),
        (["safe_mode", "active"], ["grants nothing, since stored history is in doubt: " + DOUBT], ["--new-generation"]),
        (["starting"], ["still checking stored history"], ["does not answer", "--new-generation", "in doubt"]),
        (["active"], [], ["in doubt", "does not answer", "still checking"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) and value and len(value[0]) < 12 else "",
)
async def test_status_says_which_master_doubts_and_all_of_why(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    masters: list[str],
    says: list[str],
    keeps_quiet_about: list[str],
):
    made = [master(each, DOUBT if each == "safe_mode" else "") for each in masters]
    code, err, _ = await told(tmp_path, capsys, *made)
    assert code == 1  # the bus is not there
    assert [text in err for text in says] == [True] * len(says), err
    assert [text in err for text in keeps_quiet_about] == [False] * len(keeps_quiet_about), err


async def test_status_says_of_a_masters_connection_to_the_bus_only_that_it_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    made = [master("active", term=1, bus_connected=connected) for connected in (True, False)]
    _, _, rows = await told(tmp_path, capsys, *made)
    assert [row["said"] for row in rows] == ["term=1", "term=1 bus_connected=no"]
