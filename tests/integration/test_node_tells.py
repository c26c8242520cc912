"""What a node tells anew when an engine tells more, what comes too early, what people see, what streams tell of their size."""

import msgspec

from adapters.ports import free_port
from domain.events import LendBusy, NodeSnapshot, Registered
from domain.ids import ModelId
from tests.support.engines import engine_command, tiny_engine
from tests.support.lending_pair import PATH, pair
from tests.support.local_nodes import (
    CHAT,
    LocalNode,
    client_of,
    grant_of,
    introduce,
    link_of,
    local_node,
    model_at,
    publish,
    signed,
)
from tests.support.odd_server import DONE, Heard, Reply, answer, event, odd_server, stream
from tests.support.waiting import until

STREAM = CHAT | {"stream": True}
USAGE = b'data: {"id":"c1","model":"local","choices":[],"usage":{"prompt_tokens":20,"completion_tokens":4}}\n\n'


def contexts(local: LocalNode) -> list[list[int]]:
    """Return the context windows of every registration after the first."""
    return [[info.context for info in fact.models] for fact in local.facts[1:] if isinstance(fact, Registered)]


# -- windows that engines tell later -----------------------------------------------------------------------------------------


async def test_an_engine_that_comes_up_after_the_registration_has_its_window_registered_and_a_snapshot_follows():
    port = free_port()
    late = model_at(f"http://127.0.0.1:{port}", engine="llama.cpp", local_id="tiny")
    async with local_node([late], up=False) as local:
        async with tiny_engine(ctx=2048, port=port):
            await local.said("status.registered", 1)
            await until("the window to be told", lambda: contexts(local) == [[2048]])
            await local.said("status.snapshot")
        await local.said("model.load_failed")
        async with tiny_engine(ctx=2048, port=port):
            await local.said("model.loaded", 2)
        await local.said("model.load_failed", 2)
        async with tiny_engine(ctx=1024, port=port):
            await until("another window to be told", lambda: contexts(local) == [[2048], [1024]])
    snapshots = [fact.reason for fact in local.facts if isinstance(fact, NodeSnapshot)]
    assert snapshots == ["context", "context"]


async def test_a_window_that_is_stated_is_not_told_again():
    port = free_port()
    late = model_at(f"http://127.0.0.1:{port}", engine="llama.cpp", local_id="tiny", context=512)
    async with local_node([late], up=False) as local, tiny_engine(ctx=2048, port=port):
        await local.said("model.loaded")
        assert contexts(local) == []


async def test_the_window_of_a_model_that_is_loaded_later_is_told_once_and_remembered_when_it_leaves():
    def shared(name: str, ctx: int) -> object:
        command = engine_command(alias=f"local-{name}", port="{port}", ctx=ctx)
        return model_at("", id=name, local_id=f"local-{name}", engine="llama.cpp", command=command, runtime="gpu0")

    async with local_node([shared("a", 1024), shared("b", 2048)]) as local, client_of(local) as client:  # type: ignore[list-item]
        first = local.facts[0]
        assert isinstance(first, Registered)
        assert [info.context for info in first.models] == [1024, 0]
        for model in ("b", "a", "b"):
            async with client.post(PATH, json=CHAT | {"model": model}) as got:
                assert got.status == 200
        assert contexts(local) == [[1024, 2048]]


# -- what comes before what it is about --------------------------------------------------------------------------------------


async def test_a_grant_that_comes_before_its_link_holds_once_the_link_is_there():
    async with (
        odd_server() as engine,
        odd_server() as helping,
        local_node([model_at(engine.url)], name="n1", depth=1) as owner,
        local_node([model_at(helping.url, id="theirs")], name="n2") as helper,
    ):
        link = link_of(owner, helper, "theirs")
        assert publish(signed(grant_of(link, owner, helper.url)), owner, helper)
        introduce(owner, helper, link)
        assert owner.tags("lend")[-1] == "lend.lease_updated"


async def test_a_helper_that_does_not_know_yet_whom_it_may_help_is_busy():
    async with pair() as two:
        for forget in (
            lambda view: view._drop_link(two.link.link),
            lambda view: view._nodes.pop("n1"),
        ):
            forget(two.helper.node.view)
            two.helper.node.desk.knows_control = lambda: False
            asking = await two.held()
            two.grant()
            fact = (await two.owner.said("lend.busy", two.versions))[-1]
            assert isinstance(fact, LendBusy)
            introduce(two.owner, two.helper, two.link)
            two.helper.node.desk.knows_control = lambda: True
            two.grant()
            assert (await asking).headers["leaseway-served-by"] == "n2"
            two.versions = 1
        assert two.owner.of("lend.relay_refused") == []


# -- what people see ---------------------------------------------------------------------------------------------------------


async def test_the_status_tells_what_is_kept_for_which_link_and_how_long_ago_each_request_came():
    async with pair(depth=2) as two:
        grant = msgspec.structs.replace(
            grant_of(two.link, two.owner, two.helper.url, slots=1), job_us=1_000, owner_job_us=60_000_000, work=1
        )
        two.helping.script = two.helping.hang()
        assert publish(signed(grant), two.helper, two.owner)
        two.versions = 1
        asking = [two.ask()]
        await two.helping.arrived()
        asking.append(two.ask())
        await two.owner.said("queue.kept")
        async with two.client.get("/cluster/v1/status") as got:
            (queue,) = (await got.json())["queues"]
        told = [(each["state"], each["kept_for"]) for each in queue["requests"]]
        assert told == [("engine", None), ("lent", None), ("held", two.link.link)]
        ages = [each["since_arrival_us"] for each in queue["requests"]]
        assert ages == sorted(ages, reverse=True)
        assert ages[-1] >= 0
        for task in asking:
            task.cancel()


async def test_a_request_that_came_back_is_as_old_as_it_is_although_it_is_held_anew():
    async with pair() as two:
        two.helping.script = answer({"error": "no"}, 500)
        asking = await two.held()
        two.grant()
        await two.owner.said("lend.cut_off")
        async with two.client.get("/cluster/v1/status") as got:
            (queue,) = (await got.json())["queues"]
        (held,) = [each for each in queue["requests"] if each["state"] == "held"]
        assert held["since_arrival_us"] > held["age_us"]
        asking.cancel()


# -- what engines say of their streams ---------------------------------------------------------------------------------------


async def test_an_engine_is_asked_what_a_stream_used_and_the_client_who_did_not_ask_sees_the_same_stream_as_ever():
    sent = [event("one"), event("two")]
    async with (
        odd_server(stream([*sent, USAGE, DONE])) as engine,
        local_node([model_at(engine.url)]) as local,
        client_of(local) as client,
    ):
        async with client.post(PATH, json=STREAM) as got:
            assert await got.read() == b"".join([*sent, DONE]).replace(b"local", b"public")
        assert engine.heard[0].json() == STREAM | {"model": "local", "stream_options": {"include_usage": True}}
        profile = local.node.models[ModelId("public")].sizes.profile
        assert (len(profile.ratio_logs), profile.answers) == (1, [4])


async def test_a_client_that_says_what_it_wants_of_a_stream_gets_that():
    async with (
        odd_server(stream([event("one"), USAGE, DONE])) as engine,
        local_node([model_at(engine.url)]) as local,
        client_of(local) as client,
    ):
        for options in ({"include_usage": True}, {"include_usage": False}, None):
            asked = STREAM | {"stream_options": options}
            async with client.post(PATH, json=asked) as got:
                assert b"prompt_tokens" in await got.read()
            assert engine.heard[-1].json() == asked | {"model": "local"}


async def test_an_engine_that_refuses_the_question_gets_the_request_as_it_came_and_is_not_asked_again():
    async def old(heard: Heard, reply: Reply) -> None:
        if "stream_options" in heard.json():
            await reply.json({"error": "stream_options: unknown"}, 400)
        else:
            await stream([event("one"), DONE])(heard, reply)

    async with odd_server(old) as engine, local_node([model_at(engine.url)]) as local, client_of(local) as client:
        for _ in range(2):
            async with client.post(PATH, json=STREAM) as got:
                assert got.status == 200
                assert (await got.read()).endswith(DONE)
        assert ["stream_options" in heard.json() for heard in engine.heard] == [True, False, False]


async def test_what_an_engine_states_unasked_is_the_clients_also_where_it_refused_to_be_asked():
    unasked = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'

    async def picky(heard: Heard, reply: Reply) -> None:
        if "stream_options" in heard.json():
            await reply.json({"error": "stream_options: unknown"}, 400)
        else:
            await stream([event("one"), unasked, DONE])(heard, reply)

    async with odd_server(picky) as engine, local_node([model_at(engine.url)]) as local, client_of(local) as client:
        async with client.post("/v1/chat/completions", json=STREAM) as got:
            assert unasked in await got.read()
        assert [tag for tag in local.tags("queue") if tag != "queue.finished"] == []


async def test_of_a_cached_prompt_a_real_engines_stream_teaches_the_whole_size():
    async with (
        tiny_engine() as engine,
        local_node([model_at(engine.url, engine="llama.cpp", local_id=engine.alias)]) as local,
        client_of(local) as client,
    ):
        for _ in range(3):
            async with client.post(PATH, json=STREAM) as got:
                await got.read()
        profile = local.node.models[ModelId("public")].sizes.profile
        assert len(profile.ratio_logs) == 3
        assert len(set(profile.ratio_logs)) == 1
