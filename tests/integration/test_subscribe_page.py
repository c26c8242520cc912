"""A reader of docs/how-to/subscribe.md who types what stands there gets every event, and no more than that."""

import asyncio
import io
import json
import shlex
import shutil
from collections.abc import AsyncIterator
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from adapters.log.public import PUBLIC
from adapters.nats.provision import administer
from adapters.ports import free_port
from domain.subjects import EVENTS
from services.cli.main import main
from services.config_file import load_config
from services.data_directory import DATA_VERSION
from services.projector.api_feed import Pace
from services.projector.webhooks import Webhooks
from tests.support.facts import finished, granted, held, lent
from tests.support.nats import ServerUnderTest
from tests.support.public import Public, feed_of
from tests.support.scripts import running
from tests.support.story import story_on
from tests.support.subscribe_page import PAGE, commands, lines_of, script, toml
from tests.support.tools import API
from tests.support.waiting import until

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(shutil.which("curl") is None, reason="the page's curl line needs curl"),
]


class Lab:
    """A bus with a story on it, and the tool `dash`, enrolled by the page's command."""

    def __init__(self, server: ServerUnderTest, told: dict[str, Any], public: Public) -> None:
        self.server, self.told, self.public = server, told, public

    @property
    def arguments(self) -> tuple[str, str, str]:
        """What the page's scripts are called with."""
        return self.told["server"], self.told["key"], self.told["member"]


async def cli(server: ServerUnderTest, words: str) -> dict[str, Any]:
    """Return what a command of the page prints, as JSON."""
    (server.data / "VERSION").write_text(f"{DATA_VERSION}\n")
    out = io.StringIO()
    with redirect_stdout(out):
        code = await asyncio.to_thread(main, [*shlex.split(words)[1:], "--json", "--data", str(server.data)])
    assert code == 0, out.getvalue()
    return dict(json.loads(out.getvalue()))


@pytest.fixture
async def lab(nats_server: ServerUnderTest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    """Two held requests, a lease and a lend are stored before the tool is enrolled."""
    monkeypatch.setenv("LEASEWAY_BUS_URL", nats_server.url)
    made = Public()
    async with story_on(nats_server, made):
        await made.link()
        await made.tell(held(1), held(2))
        await made.decide(granted())
        await made.tell(lent(1))
        [add] = commands("leaseway subscribe --add")
        yield Lab(nats_server, await cli(nats_server, add), made)


def places(lines: list[str]) -> list[tuple[str, int]]:
    """Return (stream, sequence) of each event that follow.py has printed."""
    return [(line.split(" ", 2)[0], int(line.split(" ", 2)[1])) for line in lines]


async def test_the_script_gets_every_event_though_it_came_late_and_was_killed(lab: Lab, tmp_path: Path) -> None:
    assert lines_of("follow.py") <= 20
    follow = script("follow.py", tmp_path)
    async with running(follow, *lab.arguments) as first:
        await until("what was stored before", lambda: first.has(5))
        await lab.public.tell(finished(1))
        await until("what came", lambda: first.has(6))
    await lab.public.tell(*(held(number) for number in range(3, 33)))
    await lab.public.decide(granted(slots=1))
    async with running(follow, *lab.arguments) as again:
        await until("the rest", lambda: len(set(places(first.lines + again.lines))) == 37)
    told = places(first.lines + again.lines)
    assert {place for place in told if place[0] == EVENTS} == {(EVENTS, seq) for seq in range(1, 35)}
    for stream in PUBLIC:
        order = [seq for name, seq in places(again.lines) if name == stream]
        assert order == sorted(order)
    event = json.loads(first.lines[0].split(" ", 3)[3])
    assert event["event"] == first.lines[0].split(" ", 3)[2]


async def test_the_script_goes_on_though_it_heard_a_thousand_times_that_nothing_is_new(
    lab: Lab, tmp_path: Path
) -> None:
    """That answer may come in the moment in which its wait is over: nats-py then raises an error of another class."""
    follow = script("follow.py", tmp_path)
    follow.write_text(follow.read_text().replace("timeout=1)", "timeout=0.005)"))
    async with running(follow, *lab.arguments) as reader:
        await until("what was stored before", lambda: reader.has(5))
        for number in range(3, 103):
            await lab.public.tell(held(number))
            await until("the next event", lambda: reader.has(number + 3))  # noqa: B023  # awaited in its own round


async def test_the_script_joins_where_it_likes(lab: Lab, tmp_path: Path) -> None:
    follow, join = script("follow.py", tmp_path), script("join.py", tmp_path)
    since = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    await lab.public.tell(finished(1), finished(2))
    for asked, wanted in (("3", [3, 4, 5]), (since, [4, 5])):
        async with running(join, *lab.arguments, EVENTS, asked) as joined:
            assert await joined.ended() == [f"joined at {wanted[0]}"]
        async with running(follow, *lab.arguments) as reader:
            await until("the events from there on", lambda: events_in(reader.lines) == wanted)  # noqa: B023  # awaited in its own round


def events_in(lines: list[str]) -> list[int]:
    return [seq for stream, seq in places(lines) if stream == EVENTS]


# ---- the nats command line -------------------------------------------------------------------------------------------


async def test_the_lines_for_the_nats_command_line_are_answered(lab: Lab) -> None:
    """That program comes with no package that is installed here: what its two lines ask of the server is asked instead."""
    shown = [*commands("nats "), lab.told["nats_live"], lab.told["nats_stored"]]
    assert len(shown) == 5
    for line in shown:
        said = parsed(line)
        name = said["--inbox-prefix"].removeprefix("_INBOX_")
        assert name == lab.told["member"]
        async with administer(lab.server.data, lab.server.url, name) as client:
            await (live if said["words"][0] == "sub" else stored)(lab, client, said)


def parsed(line: str) -> dict[str, Any]:
    """Return the flags of a line by name, and its words."""
    said: dict[str, Any] = {"words": []}
    tokens = iter(shlex.split(line)[1:])
    for token in tokens:
        if token.startswith("--"):
            said[token] = next(tokens)
        else:
            said["words"].append(token)
    return said


async def live(lab: Lab, client: Client, said: dict[str, Any]) -> None:
    heard = await client.subscribe(said["words"][1])
    await client.flush()
    await lab.public.decide(granted())
    while json.loads((await heard.next_msg(5)).data)["type"] != "lease.granted":
        pass  # what the mirrors, just made, have taken only now


async def stored(lab: Lab, client: Client, said: dict[str, Any]) -> None:
    """Ask as it does for the next messages, and acknowledge them (tests/integration/test_nats_cli_requests.py has the rest)."""
    (_, _, stream, consumer), api = said["words"], f"$JS.{said['--js-domain']}.API"
    assert (api, consumer) == (API, lab.told["member"])
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    asked = json.dumps({"batch": int(said["--count"]), "no_wait": True}).encode()
    await client.publish(f"{api}.CONSUMER.MSG.NEXT.{stream}.{consumer}", asked, reply=inbox)
    while (message := await answers.next_msg(5)).data:  # an empty one says that there is no more
        assert json.loads(message.data)["type"] == "lease.granted"
        await message.ack_sync()


# ---- without NATS ----------------------------------------------------------------------------------------------------


async def test_curl_gets_every_event_from_the_feed(lab: Lab, tmp_path: Path) -> None:
    [line] = commands("curl ")
    async with feed_of(lab.public, Pace()) as feed:
        words = shlex.split(line.replace("http://127.0.0.1:8200/v1/lending/events", feed.url))
        async with running(words[1], *words[2:], program=words[0]) as curl:
            await until("lease and lend", lambda: len(kinds_in(curl.lines)) == 2)
            await lab.public.decide(granted(slots=1))
            await until("the new lease", lambda: len(kinds_in(curl.lines)) == 3)
    assert kinds_in(curl.lines) == ["lease.granted", "lend.lent", "lease.granted"]


def kinds_in(lines: list[str]) -> list[str]:
    return [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]


async def test_the_receiver_takes_what_is_signed_and_nothing_else(lab: Lab, tmp_path: Path) -> None:
    assert lines_of("receive.py") <= 25
    [secret] = commands("(umask")
    making = await asyncio.create_subprocess_shell(secret, cwd=tmp_path)
    assert await making.wait() == 0
    port = free_port()
    path = tmp_path / "leaseway.toml"
    text = toml().replace("127.0.0.1:9000", f"127.0.0.1:{port}")
    path.write_text(text + 'since = "0"\n')
    config = load_config(path, environment={"HOME": str(tmp_path)})
    async with running(script("receive.py", tmp_path), str(tmp_path / "hook.secret"), str(port)) as receiver:
        hooks = Webhooks(config.webhooks, lab.public.supply, tmp_path)
        posting = asyncio.create_task(hooks.run())
        await until("lease and lend", lambda: receiver.has(2))
        status = await post_forged(port)
        posting.cancel()
        await asyncio.wait({posting})
    assert [line.split(" ")[1] for line in receiver.lines] == ["lease.granted", "lend.lent"]
    assert status == b"HTTP/1.0 401"


async def post_forged(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    headers = "webhook-id: x\r\nwebhook-timestamp: 1\r\nwebhook-signature: v1,AAAA\r\ncontent-length: 2\r\n"
    writer.write(f"POST /lending HTTP/1.1\r\nhost: x\r\n{headers}\r\n{{}}".encode())
    status = (await reader.read())[:12]
    writer.close()
    return status


def test_the_page_says_nothing_that_is_not_run_here() -> None:
    scripts = [line for line in PAGE.read_text().splitlines() if line.startswith("```python")]
    assert scripts == [f"```python name={name}" for name in ("follow.py", "join.py", "receive.py")]


async def test_without_a_bus_the_tool_is_not_there_yet_and_the_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEASEWAY_BUS_URL", f"nats://127.0.0.1:{free_port()}")
    code = await asyncio.to_thread(main, ["subscribe", "--add", "dash", "--data", str(tmp_path / "data")])
    assert code == 1
    assert capsys.readouterr().err.rstrip().endswith("start it with `leaseway up`, then run this again")
