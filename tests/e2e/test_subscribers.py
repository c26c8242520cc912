"""A running cluster lends a burst, and every kind of subscriber that the docs teach hears all of it; one that comes late, too."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from adapters.nats.enrolment import key_path
from adapters.nats.provision import administer
from adapters.ports import free_port
from tests.e2e.test_first_light import HELPER, OWNER, REQUESTS, ask, is_priced, lent_by_a_burst
from tests.support.processes import Cluster, Node, cluster
from tests.support.scripts import Script, running
from tests.support.subscribe_page import script
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(180)]
CANARY = "zebra-crossing-7f3a"


async def test_every_subscriber_of_the_docs_hears_every_event_of_a_lent_burst(tmp_path: Path) -> None:
    port = free_port()
    secret = tmp_path / "hook.secret"
    secret.write_text("whsec_" + base64.b64encode(os.urandom(32)).decode())
    secret.chmod(0o600)
    hook = f'[[webhooks]]\nname = "tickets"\nurl = "http://127.0.0.1:{port}/"\nsecret_file = "{secret}"\nsince = "0"\n'
    receive = script("receive.py", tmp_path)
    async with (
        cluster(tmp_path, [Node(id=OWNER), Node(id=HELPER)], config=hook) as cluster_,
        running(receive, str(secret), str(port)) as receiver,
    ):
        told = (await cluster_.cli("subscribe", "--add", "early", "--json")).rows[0]
        follow = script("follow.py", tmp_path)
        arguments = (told["server"], told["key"], told["member"])
        feed = f"{cluster_.endpoints.projector}/v1/lending/events?since=0"
        async with running(follow, *arguments) as early, running("-sN", feed, program="curl") as curl:
            lent = await lend_a_burst(cluster_)
            late = (await cluster_.cli("subscribe", "--add", "late", "--json")).rows[0]
            async with running(follow, late["server"], late["key"], late["member"]) as joined:
                await hear_the_same(cluster_, early, joined, curl, receiver, lent)
        await can_do_nothing_else(cluster_, late)
        assert CANARY not in "".join(early.lines + joined.lines + curl.lines)


async def lend_a_burst(running_: Cluster) -> set[str]:
    await ask(running_, CANARY)
    await running_.cli("settings", "set", "scheduling_min_samples=4")
    await until("the price of the owner's work", lambda: is_priced(running_))
    await running_.link(OWNER, HELPER)
    return await lent_by_a_burst(running_)


async def hear_the_same(
    running_: Cluster, early: Script, late: Script, curl: Script, receiver: Script, lent: set[str]
) -> None:
    """The facts that the bus holds are those that everybody has heard: by script from the start and late, by curl, by webhook."""

    async def whole() -> bool:
        stored = {row["seq"] for row in await running_.events()}
        posted = len({line.split(" ")[0] for line in receiver.lines})
        others = {place for place in places(early) if place[0] != "LW_EVENTS"}
        return (
            facts_of(early) >= stored
            and facts_of(late) >= stored
            and {place for place in places(late) if place[0] != "LW_EVENTS"} == others
            and ids_of(curl) >= len(stored) + len(others)
            and posted >= len(stored) + len(others)
        )

    await until("all to have heard all", whole, timeout_s=60, every_s=0.5)
    heard = [line.split(" ", 3) for line in early.lines]
    assert {json.loads(each[3])["request"] for each in heard if each[2] == "lend.lent"} >= lent
    assert {"lease.granted", "lend.lent", "lend.answered", "borrow.finished", "queue.finished"} <= {
        each[2] for each in heard
    }
    finished = [each for each in heard if each[2] == "queue.finished"]
    assert len(finished) >= 2 * REQUESTS


def places(script_: Script) -> set[tuple[str, int]]:
    return {(line.split(" ")[0], int(line.split(" ")[1])) for line in script_.lines}


def facts_of(script_: Script) -> set[int]:
    return {seq for stream, seq in places(script_) if stream == "LW_EVENTS"}


def ids_of(curl: Script) -> int:
    return len([line for line in curl.lines if line.startswith("event: ")])


async def can_do_nothing_else(running_: Cluster, told: dict[str, Any]) -> None:
    """Nothing that a tool says is stored, and the cluster is as well as before."""
    before = len(await running_.events())
    assert key_path(running_.data, told["member"]).exists()
    async with administer(running_.data, told["server"], told["member"]) as rogue:
        for subject in (
            "lw.local.node.studio.status.stopped",
            "lw.local.safe_mode.entered",
            "$JS.API.STREAM.DELETE.LW_EVENTS",
        ):
            await rogue.publish(subject, b"{}", reply="$JS.API.STREAM.DELETE.LW_DECISIONS")
        await rogue.flush()
    status = await running_.cli("status")
    assert status.code == 0, status
    stored = await running_.events()
    assert len(stored) >= before
    assert not [row for row in stored if row["event"] is None or row["event"]["type"] == "status.stopped"]
    removed = await running_.cli("subscribe", "--remove", "late")
    assert removed.code == 0, removed
