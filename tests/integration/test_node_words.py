"""What a node does on words of the master that give no slots, on settings that change while it runs, and with pictures."""

import asyncio

import aiohttp
import msgspec

from adapters.http.body import parse
from adapters.keys import new_nkey
from domain.control.settings import PREFIX
from domain.events import (
    ControlEvent,
    CutOff,
    Held,
    LeaseChecked,
    LeaseStalled,
    Lent,
    LinkPriced,
    NodeSnapshot,
    Rejected,
    SettingChanged,
    SettingCleared,
    SettingStated,
    SettingUnstated,
    StillRunning,
)
from domain.ids import ModelId, NodeId, RequestId
from tests.support.lending_pair import LENT, PATH, Pair, pair
from tests.support.local_nodes import CHAT, LocalNode, client_of, local_node, model_at, publish, signed
from tests.support.odd_server import Heard, Reply, answer, event, odd_server, stream
from tests.support.waiting import until

DEPTH = PREFIX + "scheduling_backend_depth"
PICTURES = "/v1/images/generations"
DRAWN = {"created": 1, "data": [{"b64_json": "AAAA"}]}
STREAM = CHAT | {"stream": True}


def state(local: LocalNode, event_: ControlEvent) -> None:
    """Let the node hear a control event."""
    local.node.view.apply(event_)
    local.node.control_changed()


def set_to(local: LocalNode, name: str, value: int) -> None:
    """Let an operator change a setting, as LW_CONTROL would say it."""
    state(local, SettingChanged(name=PREFIX + name, value=value))


def word(two: Pair, kind: type[LeaseChecked] | type[LeaseStalled]) -> LeaseChecked | LeaseStalled:
    link = two.link
    return kind(
        link=link.link,
        owner=link.owner,
        owner_model=link.owner_model,
        helper=link.helper,
        helper_model=link.helper_model,
        quiet_us=180_000_000,
    )


def priced(two: Pair) -> LinkPriced:
    link = two.link
    return LinkPriced(
        link=link.link,
        owner=link.owner,
        owner_model=link.owner_model,
        helper=link.helper,
        helper_model=link.helper_model,
        faster=True,
        job_us=1_000,
        owner_job_us=1_000_000,
        work=1,
    )


async def lent(two: Pair, **more: object) -> "asyncio.Future[aiohttp.ClientResponse]":
    """Have a request run at the helper, whose engine hangs."""
    two.helping.script = two.helping.hang()
    asking = await two.held(**more)
    two.grant()
    await two.helping.arrived()
    return asking


async def test_a_helper_that_is_asked_says_what_it_still_runs():
    async with pair() as two:
        asking = await lent(two)
        assert publish(signed(word(two, LeaseChecked), version=9), two.helper, two.owner)
        (fact,) = await two.helper.said("borrow.still_running")
        assert isinstance(fact, StillRunning)
        assert (fact.owner, fact.link, fact.model) == ("n1", two.link.link, "theirs")
        assert two.owner.of("lend.cut_off") == []
        asking.cancel()


async def test_a_stalled_link_loses_what_was_lent_over_it_and_the_owner_runs_it_once():
    async with pair() as two:
        two.engine.script = answer()
        asking = await lent(two)
        assert publish(signed(word(two, LeaseStalled), version=9), two.owner, two.helper)
        (fact,) = await two.owner.said("lend.cut_off")
        assert isinstance(fact, CutOff)
        assert fact.reason == "stalled"
        async with asyncio.timeout(1):
            await two.helping.cancelled.wait()
        two.busy[0].cancel()
        got = await asking
        assert got.headers["leaseway-served-by"] == "n1"
        assert len(two.engine.heard) == 2


async def test_what_a_helper_holds_in_silence_comes_back_although_there_is_no_master_and_the_owner_runs_it():
    async with pair() as two:
        two.engine.script = answer()
        asking = await lent(two)
        state_stall(two, 50_000)
        (fact,) = await two.owner.said("lend.cut_off")
        assert isinstance(fact, CutOff)
        assert fact.reason == "unwatched"
        async with asyncio.timeout(1):
            await two.helping.cancelled.wait()
        two.busy[0].cancel()
        got = await asking
        assert (got.status, got.headers["leaseway-served-by"]) == (200, "n1")
        assert two.helper.counts("theirs") == (0, 0, 0, 0)


async def test_a_lent_stream_that_falls_silent_for_good_ends_with_an_error_although_there_is_no_master():
    async with pair() as two:
        two.helping.script = stream([event("a")], end=False)
        asking = await two.held(stream=True)
        two.grant()
        got = await asking
        state_stall(two, 50_000)
        async with asyncio.timeout(10):
            told = await got.read()
        assert told.startswith(event("a").replace(b"local", b"public"))
        assert b'"engine_failed"' in told
        assert b"[DONE]" not in told
        await until("the helper's place to be free", lambda: two.helper.counts("theirs") == (0, 0, 0, 0))


async def test_an_owner_hears_that_the_master_asks_its_helper_so_that_it_takes_nothing_back_meanwhile():
    async with pair() as two:
        asking = await lent(two)
        track = two.owner.node.models[ModelId("public")].serving.runtime.owner.leases.track(two.link.link)
        before_us = track.heard_us
        assert publish(signed(word(two, LeaseChecked), version=9), two.owner, two.helper)
        assert track.heard_us > before_us
        asking.cancel()


def state_stall(two: Pair, stall_us: int) -> None:
    """Have the owner's machines believe in a stall timeout that is shorter than an operator may state."""
    two.owner.node.models[ModelId("public")].serving.set_stall(stall_us)


async def test_a_word_that_the_master_did_not_sign_is_not_heard():
    async with pair() as two:
        asking = await lent(two)
        assert not publish(signed(word(two, LeaseStalled), version=9, seed=new_nkey()[0]), two.owner)
        assert two.owner.of("lend.cut_off") == []
        asking.cancel()


async def test_a_word_for_a_node_or_model_that_is_not_here_changes_nothing():
    async with pair() as two:
        asking = await lent(two)
        stalled = word(two, LeaseStalled)
        elsewhere = msgspec.structs.replace(stalled, owner=NodeId("n9"))
        unknown = msgspec.structs.replace(stalled, owner_model=ModelId("none"))
        for version, each in enumerate((elsewhere, unknown), 5):
            assert publish(signed(each, version=version), two.owner, two.helper)
        assert two.owner.of("lend.cut_off") == []
        asking.cancel()


async def test_a_request_waits_a_moment_for_the_decision_when_the_helper_is_measured_and_faster():
    async with pair(depth=2) as two:
        assert publish(signed(priced(two), version=5), two.owner)
        asking = two.ask()
        await two.owner.said("queue.started", 2)
        assert two.owner.tags("queue")[-2:] == ["queue.held", "queue.started"]
        asking.cancel()


async def test_with_the_setting_off_it_does_not_wait():
    async with pair(depth=2) as two:
        set_to(two.owner, "offload_hold_for_faster_helper", 0)
        assert publish(signed(priced(two), version=5), two.owner)
        asking = two.ask()
        await two.owner.said("queue.started", 2)
        assert two.owner.of("queue.held") == []
        asking.cancel()


async def test_streams_are_lent_as_the_setting_of_the_moment_says():
    async with pair() as two:
        set_to(two.owner, "offload_streams", 0)
        first = await two.held(stream=True)
        two.owner.node.view.apply(SettingCleared(name=PREFIX + "offload_streams"))
        two.owner.node.control_changed()
        second = await two.held(stream=True)
        set_to(two.owner, "offload_streams", 0)
        held = [fact for fact in two.owner.facts if isinstance(fact, Held)]
        off, on = (False, "streaming_off"), (True, "")
        assert [(fact.lendable, fact.not_lendable) for fact in held] == [off, on, on, off, off]
        first.cancel()
        second.cancel()


async def test_the_depth_of_the_moment_is_what_a_linked_engine_gets():
    async with pair() as two:
        waiting = await two.held()
        set_to(two.owner, "scheduling_backend_depth", 2)
        await two.engine.arrived(2)
        waiting.cancel()


async def test_the_files_depth_holds_unless_an_operator_sets_another_and_the_nodes_own_where_nobody_says_one():
    async with pair() as two:
        waiting = [await two.held() for _ in range(3)]
        state(two.owner, SettingStated(name=DEPTH, value=3))
        await two.engine.arrived(3)
        state(two.owner, SettingChanged(name=DEPTH, value=4))
        await two.engine.arrived(4)
        depths = []
        for event_ in (SettingCleared(name=DEPTH), SettingUnstated(name=DEPTH)):
            state(two.owner, event_)
            depths.append(two.owner.node.depth)
        assert depths == [3, 1]
        for task in waiting:
            task.cancel()


async def test_the_reserve_for_an_answer_is_the_one_of_the_moment():
    async def counted(_: Heard, reply: Reply) -> None:
        await reply.json({"model": "x", "choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 4}})

    async with odd_server(counted) as engine, local_node([model_at(engine.url)]) as local, client_of(local) as client:
        for _ in range(3):
            async with client.post(PATH, json=CHAT) as got:
                assert got.status == 200
        sizes = local.node.models[ModelId("public")].sizes
        read = parse(msgspec.json.encode({"model": "public", "messages": CHAT["messages"]}))
        before = sizes.describe(RequestId("req_a"), read).est_tokens
        set_to(local, "scheduling_context_reserve", 5000)
        after = sizes.describe(RequestId("req_b"), read).est_tokens
        assert (0 < before < 5000, after >= 5000) == (True, True)


async def test_the_sign_of_life_follows_the_leases_lifetime():
    async with pair() as two:
        waiting = await two.held()
        runtime = two.owner.node.models[ModelId("public")].serving.runtime
        before_us = runtime.next_timer_us()
        set_to(two.owner, "offload_lease_ttl", 3_000_000)
        after_us = runtime.next_timer_us()
        assert before_us is not None
        assert after_us is not None
        assert 8_000_000 <= before_us - after_us <= 9_000_000
        waiting.cancel()


async def test_an_answer_that_has_begun_is_noted_so_that_nothing_cuts_it_off_for_being_late():
    async with pair() as two:
        two.helping.script = stream([event("one")], end=False)
        asking = await two.held(stream=True)
        two.grant()
        got = await asking
        await got.content.readuntil(b"\n\n")
        (fact,) = two.owner.of("lend.lent")
        assert isinstance(fact, Lent)
        own = two.owner.node.models[ModelId("public")].serving.runtime._lent(fact.request, fact.lease)
        assert own is not None
        assert own.answering
        got.close()


# -- images and pictures ------------------------------------------------------------------------------------------------------


async def test_a_request_with_an_image_is_held_as_one_that_needs_eyes_and_may_be_lent():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    async with pair() as two:
        asking = await two.held(messages=[{"role": "user", "content": [image]}])
        held = [fact for fact in two.owner.facts if isinstance(fact, Held)][-1]
        assert (held.vision, held.lendable, held.not_lendable) == (True, True, "")
        asking.cancel()


async def test_pictures_are_served_and_lent_like_text_and_their_work_is_size_by_steps_by_number():
    async with pair(lane="image") as two:
        two.helping.script = answer(DRAWN)
        asked = {"model": "public", "prompt": "a fox", "size": "1024x512", "steps": 20, "n": 2}
        asking = asyncio.ensure_future(two.client.post(PICTURES, json=asked))
        await until("the request to be held", lambda: two.owner.counts()[0] == 1)
        two.grant()
        got = await asking
        assert (got.status, await got.json(), got.headers["leaseway-served-by"]) == (200, DRAWN, "n2")
        assert (two.helping.heard[0].path, two.helping.heard[0].json()["model"]) == (PICTURES, "x")
        held = [fact for fact in two.owner.facts if isinstance(fact, Held)][-1]
        assert (held.lane, held.work) == ("image", 20_000_000)


async def test_a_model_that_does_not_draw_is_not_asked_for_pictures():
    async with pair() as two:
        async with two.client.post(PICTURES, json={"model": "public", "prompt": "a fox"}) as got:
            assert (got.status, (await got.json())["error"]["code"]) == (400, "invalid_model")
        assert [fact for fact in two.owner.facts if isinstance(fact, Rejected)] == []
        assert len(two.engine.heard) == 1


async def test_a_nodes_estimate_comes_from_what_its_engine_counted():
    async def counted(_: Heard, reply: Reply) -> None:
        await reply.json({"model": "x", "choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 4}})

    async with pair() as two, client_of(two.helper) as own:
        two.helping.script = counted
        for _ in range(3):
            async with own.post(PATH, json=LENT) as got:
                assert got.status == 200
        profile = two.helper.node.models[ModelId("theirs")].sizes.profile
        assert (len(profile.ratio_logs), profile.answers) == (3, [4, 4, 4])
        two.helper.node.snapshot("asked")
        assert isinstance(two.helper.of("status.snapshot")[-1], NodeSnapshot)


async def test_a_snapshot_says_again_which_models_take_borrowed_work_since_that_fact_may_be_lost():
    async with pair() as two:
        for engine_up, last in ((False, "status.not_accepting"), (True, "status.accepting")):
            two.helper.node.models[ModelId("theirs")].serving.engine_up(up=engine_up)
            assert two.helper.tags()[-1] == last
            two.helper.node.snapshot("overflow")
            assert two.helper.tags()[-2:] == ["status.snapshot", last]
        two.owner.node.snapshot("overflow")
        assert two.owner.tags()[-1] == "status.snapshot"  # its model helps nobody
