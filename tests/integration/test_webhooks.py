"""Webhooks: every event that is wanted reaches its endpoint, in order and signed, whatever the endpoint or this process does."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from adapters.http.webhook import Outcome
from adapters.keys import Signer, new_nkey
from domain.errors import BadConfigError
from domain.subjects import EVENTS
from services.projector.hook_book import HookBook
from services.projector.webhooks import Webhooks
from tests.support.facts import Teller, finished, granted, held, lent
from tests.support.hooks import QUICK, SECRET, Endpoint, config, posting, serving, stated
from tests.support.public import Public
from tests.support.waiting import until


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with serving() as served:
        yield served


@pytest.fixture
def public() -> Public:
    return Public()


async def test_every_event_is_posted_in_order_signed_and_as_it_is_stored(
    public: Public, endpoint: Endpoint, tmp_path: Path
) -> None:
    await public.link()
    await public.tell(held(1))
    await public.decide(granted())
    async with posting(public, tmp_path, config(endpoint.url)) as hooks:
        await public.tell(lent(1))
        await until("four events", lambda: len(endpoint.taken) == 4)
        await public.tell(finished(1))
        await until("the fifth", lambda: len(endpoint.taken) == 5)
        assert stated(hooks)["state"] == "ok"
        await until("its place", lambda: stated(hooks)["place"] == "3-1-1")
    assert endpoint.kinds() == ["control.link_added", "queue.held", "lease.granted", "lend.lent", "queue.finished"]
    assert endpoint.forged == 0
    stored = await public.streams[EVENTS].get(1)
    assert stored is not None
    assert endpoint.taken[1] == json.loads(stored.body)
    assert len(set(endpoint.ids)) == 5


async def test_a_lease_that_the_master_has_not_signed_is_not_posted(
    public: Public, endpoint: Endpoint, tmp_path: Path
) -> None:
    await public.decide(granted(slots=7), signer=Signer(new_nkey()[0]))
    await public.decide(granted(slots=3))
    async with posting(public, tmp_path, config(endpoint.url)) as hooks:
        await until("the lease", lambda: stated(hooks)["place"] == "0-0-2")
    assert [each["data"]["slots"] for each in endpoint.taken] == [3]
    assert public.told.refused == 1


async def test_a_hook_posts_what_its_filters_name(public: Public, endpoint: Endpoint, tmp_path: Path) -> None:
    await public.tell(held(1), lent(1), finished(1))
    await public.decide(granted())
    async with posting(public, tmp_path, config(endpoint.url, events=("lend.*", "lease.*"), owner="n1")):
        await until("two events", lambda: len(endpoint.taken) == 2)
    assert endpoint.kinds() == ["lend.lent", "lease.granted"]


async def test_a_new_hook_begins_now_and_stays_there_over_a_restart(
    public: Public, endpoint: Endpoint, tmp_path: Path
) -> None:
    await public.tell(held(1))
    async with posting(public, tmp_path, config(endpoint.url, since="")):
        await until("its beginning", lambda: HookBook(tmp_path, "tickets").read())
    await public.tell(finished(1))
    async with posting(public, tmp_path, config(endpoint.url, since="")):
        await until("the event", lambda: endpoint.taken)
    assert endpoint.kinds() == ["queue.finished"]


async def test_what_is_not_taken_is_posted_again_with_the_same_id_before_the_next(
    public: Public, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.answers = [
        web.Response(status=500),
        web.Response(status=429, headers={"Retry-After": "0"}),
        web.Response(status=503),
    ]
    await public.tell(held(1), held(2))
    async with posting(public, tmp_path, config(endpoint.url)) as hooks:
        await until("both events", lambda: stated(hooks)["delivered"] == 2)
        assert stated(hooks) == {
            "name": "tickets", "endpoint": endpoint.url.removesuffix("hook") + "...", "state": "ok", "place": "2-0-0",
            "delivered": 2, "failures": 3, "attempts": 5, "missed": 0, "failing_s": 0, "last_status": 204, "error": "",
        }  # fmt: skip
    assert endpoint.attempts == [endpoint.ids[0]] * 4 + [endpoint.ids[1]]


async def test_after_a_kill_a_hook_goes_on_where_its_endpoint_stands(
    public: Public, endpoint: Endpoint, tmp_path: Path
) -> None:
    await public.tell(*(held(number) for number in range(40)))
    for count in (9, 18, 27):
        endpoint.mute_at = count  # it takes that one, and its answer is lost
        async with posting(public, tmp_path, config(endpoint.url)):
            await until("some more", endpoint.has(count))
    endpoint.mute_at = 0
    async with posting(public, tmp_path, config(endpoint.url)):
        await until("all", lambda: len(set(endpoint.ids)) == 40)
    order = [int(each.rpartition("/")[2]) for each in dict.fromkeys(endpoint.ids)]
    assert order == sorted(order)
    twice = [each for each in set(endpoint.ids) if endpoint.ids.count(each) == 2]
    assert (len(endpoint.ids), len(twice)) == (43, 3)  # what was on its way at each end came again, and nothing else


async def test_a_dead_and_a_silent_endpoint_hold_up_nobody_else(
    public: Public, endpoint: Endpoint, tmp_path: Path
) -> None:
    async with serving() as silent:
        silent.silent = True
        others = (config("http://127.0.0.1:9", name="dead"), config(silent.url, name="silent"))
        async with posting(public, tmp_path, *others, config(endpoint.url)) as hooks:
            await public.tell(*(held(number) for number in range(20)))
            await until("all events", lambda: len(endpoint.taken) == 20)
            await until("a failure", lambda: stated(hooks, "dead")["failures"] > 1)
            assert (stated(hooks, "dead")["state"], stated(hooks, "dead")["place"]) == ("retrying", "0-0-0")
            assert stated(hooks, "silent")["delivered"] == 0


async def test_no_redirect_is_followed(public: Public, endpoint: Endpoint, tmp_path: Path) -> None:
    async with serving() as stranger:
        endpoint.answers = [web.Response(status=307, headers={"Location": stranger.url})]
        await public.tell(held(1))
        async with posting(public, tmp_path, config(endpoint.url)) as hooks:
            await until("the event", lambda: endpoint.taken)
            assert stated(hooks)["failures"] == 1
        assert stranger.attempts == []


async def test_a_hook_whose_endpoint_fails_for_too_long_is_disabled_where_it_stands(
    public: Public, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await public.tell(held(1))
    doomed = config("http://127.0.0.1:9")
    async with posting(public, tmp_path, msgspec.structs.replace(doomed, give_up_h=0)) as hooks:
        await until("its end", lambda: stated(hooks)["state"] == "disabled")
        assert stated(hooks)["error"].startswith("no answer: ")
    [record] = [each for each in caplog.records if each.message == "webhook_disabled"]
    assert (record.hook, record.place) == ("tickets", "0-0-0")  # type: ignore[attr-defined]
    assert HookBook(tmp_path, "tickets").read() is not None


async def test_an_endpoint_that_is_gone_is_asked_no_more_until_a_restart(
    public: Public, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.answers = [web.Response(status=410)]
    await public.tell(held(1))
    async with posting(public, tmp_path, config(endpoint.url)) as hooks:
        await until("its end", lambda: stated(hooks)["state"] == "disabled")
    assert len(endpoint.attempts) == 1
    async with posting(public, tmp_path, config(endpoint.url)):
        await until("the event", lambda: endpoint.taken)


async def test_what_is_gone_from_a_stream_is_counted(public: Public, endpoint: Endpoint, tmp_path: Path) -> None:
    await public.tell(held(1), held(2), finished(1))
    public.streams[EVENTS].expire(3)
    async with posting(public, tmp_path, config(endpoint.url)) as hooks:
        await until("the event", lambda: endpoint.taken)
        assert stated(hooks)["missed"] == 2
    assert endpoint.kinds() == ["queue.finished"]


async def test_pauses_grow_to_a_bound_and_obey_the_endpoint_up_to_it(public: Public, tmp_path: Path) -> None:
    hooks = Webhooks([config("http://127.0.0.1:9")], public.supply, tmp_path)
    pause = hooks.hooks[0]._pause_s
    assert [0.5 * 2**n <= pause(n, Outcome(error="x")) <= 2**n for n in range(6)] == [True] * 6
    assert 150 <= pause(40, Outcome(error="x")) <= 300
    assert pause(0, Outcome(error="x", retry_after_s=60)) == 60
    assert pause(0, Outcome(error="x", retry_after_s=1e9)) == 300


def test_a_secret_comes_from_a_file_that_its_owner_alone_can_read(public: Public, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    path.chmod(0o644)
    asked = config("http://127.0.0.1:9", secret="", secret_file=path)
    with pytest.raises(BadConfigError, match="must be readable by its owner alone"):
        Webhooks([asked], public.supply, tmp_path)
    path.chmod(0o600)
    assert Webhooks([asked], public.supply, tmp_path).hooks


@pytest.mark.parametrize(
    "secret", ["whsec_", "hunter2", "whsec_c2hvcnQ=", "whsec_" + base64.b64encode(b"a" * 32).decode()]
)
def test_a_weak_secret_is_refused_and_not_shown(public: Public, tmp_path: Path, secret: str) -> None:
    with pytest.raises(BadConfigError) as raised:
        Webhooks([config("http://127.0.0.1:9", secret=secret)], public.supply, tmp_path)
    assert secret.removeprefix("whsec_") == "" or secret.removeprefix("whsec_") not in str(raised.value)


@pytest.mark.parametrize("odd", ["\x00", "\x7f\x1b", "\x0b\x85\u2028", "\ufffd"])
async def test_an_event_whose_subject_no_header_can_hold_is_posted_like_any_other(
    public: Public, endpoint: Endpoint, tmp_path: Path, odd: str
) -> None:
    await public.streams[EVENTS].publish(f"lw.local.node.n1.queue.{odd}.held", public.owner.body(held(1)))
    await public.tell(held(2))
    async with posting(public, tmp_path, config(endpoint.url)):
        await until("both", endpoint.has(2))


async def test_an_event_that_is_no_text_is_posted_as_text(public: Public, endpoint: Endpoint, tmp_path: Path) -> None:
    fact = held(1)
    body = public.owner.body(fact).replace(b'"mac":', b'"more":"\xff\xfe","mac":')
    await public.streams[EVENTS].publish(public.owner.subject(fact), body)
    async with posting(public, tmp_path, config(endpoint.url)):
        await until("it", endpoint.has(1))
    assert endpoint.taken[0]["more"] == "\ufffd\ufffd"


async def test_the_ids_of_two_nodes_events_differ_even_if_one_says_the_other_s(
    public: Public, endpoint: Endpoint, tmp_path: Path
) -> None:
    thief = Teller("n2", incarnation=public.owner.incarnation)
    await public.tell(held(1))
    await public.tell(held(1), teller=thief)
    async with posting(public, tmp_path, config(endpoint.url)):
        await until("both", endpoint.has(2))
    assert len(set(endpoint.ids)) == 2


async def test_a_fault_with_one_hook_s_event_stops_no_other_hook_and_is_told(
    public: Public, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> bool:
        raise ValueError("nobody thought of this")

    await public.tell(held(1))
    other = config(endpoint.url, name="other")
    hooks = Webhooks([config(endpoint.url), other], public.supply, tmp_path, QUICK)
    monkeypatch.setattr(hooks.hooks[0], "_deliver", fails)
    task = asyncio.create_task(hooks.run())
    await until("the other's", endpoint.has(1))
    await until("the word", lambda: stated(hooks)["state"] == "waiting" and "ValueError" in stated(hooks)["error"])
    assert stated(hooks, "other")["state"] == "ok"
    task.cancel()
    await asyncio.wait({task})


@pytest.mark.parametrize("since", ["yesterday", "1-2", "LW_LEDGER:1", "2026-13-05", "2026-11-30"])
def test_a_hook_that_says_no_place_to_begin_at_is_refused_at_the_start(
    public: Public, tmp_path: Path, since: str
) -> None:
    with pytest.raises(BadConfigError, match=r"tickets.*since"):
        Webhooks([config("http://127.0.0.1:1", since=since)], public.supply, tmp_path)


async def test_a_hook_whose_place_cannot_be_read_misses_nothing(
    public: Public, endpoint: Endpoint, tmp_path: Path
) -> None:
    await public.tell(held(1), held(2))
    async with posting(public, tmp_path, config(endpoint.url, since="")) as hooks:
        await until("its place", lambda: stated(hooks)["place"] == "2-0-0")
    HookBook(tmp_path, "tickets").path.write_bytes(b"")  # as a power cut leaves a file on some file systems
    await public.tell(held(3))
    async with posting(public, tmp_path, config(endpoint.url, since="")):
        await until("all three", endpoint.has(3))
