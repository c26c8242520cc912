"""Models of a node that share a runtime: real engines that take turns, and servers that are told to swap."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest

from domain.actions import AcceptBorrow, Dispatch, RefuseBorrow
from domain.events import (
    BorrowReturned,
    LendAnswered,
    Loaded,
    LoadFailed,
    LoadStarted,
    NodeSnapshot,
    RestoreScheduled,
    SettingChanged,
    Unloaded,
)
from domain.ids import LeaseId, LinkId, ModelId, NodeId, RequestId
from domain.inputs import BorrowOffer
from services.config import NodeModel
from tests.support.engines import engine_command
from tests.support.family import children
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
from tests.support.odd_server import Heard, OddServer, Reply, answer, odd_server
from tests.support.waiting import until

pytestmark = pytest.mark.real
PATH = "/v1/chat/completions"


def started(name: str, **more: object) -> NodeModel:
    """Return a model whose engine the node starts, in the runtime `gpu0`."""
    command = engine_command(alias=f"local-{name}", port="{port}")
    stated = {"id": name, "local_id": f"local-{name}", "engine": "llama.cpp", "command": command, "runtime": "gpu0"}
    return NodeModel(**{**stated, **more})  # type: ignore[arg-type]


def engines() -> list[int]:
    """Return the engine processes of this test that live."""
    return [pid for pid, command in children(os.getpid()) if "adapters.engines.llama_server" in command]


async def ask(client: aiohttp.ClientSession, model: str, **more: object) -> tuple[int, str]:
    """Return (status, the node that served it, or the code of the error)."""
    async with client.post(PATH, json=CHAT | {"model": model} | more) as got:
        body = await got.json()
        return got.status, body["error"]["code"] if "error" in body else got.headers["leaseway-served-by"]


def story(local: LocalNode) -> list[str]:
    """Return what was loaded and unloaded, in short."""
    told = []
    for fact in local.facts:
        match fact:
            case LoadStarted(model=model, cause=cause):
                told.append(f"{cause} wants {model}")
            case Loaded(model=model):
                told.append(f"{model} in")
            case Unloaded(model=model):
                told.append(f"{model} out")
            case LoadFailed(model=model, reason=reason):
                told.append(f"{model} failed: {reason}")
            case RestoreScheduled(model=model):
                told.append(f"{model} is to come back")
            case _:
                pass
    return told


async def test_a_request_for_the_other_model_loads_it_in_place_of_the_first_and_one_engine_lives_at_a_time():
    async with local_node([started("a"), started("b")]) as local, client_of(local) as client:
        assert story(local) == ["own wants a", "a in"]
        first = engines()
        assert len(first) == 1
        assert await ask(client, "b") == (200, "n1")
        assert len(engines()) == 1
        assert engines() != first
        assert await ask(client, "a") == (200, "n1")
        assert story(local)[2:] == ["a out", "own wants b", "b in", "b out", "own wants a", "a in"]
        loads = [fact for fact in local.facts if isinstance(fact, Loaded)]
        assert all(fact.load_us > 50_000 for fact in loads), loads
    assert engines() == []


async def test_a_model_that_says_so_is_the_first_one_and_the_list_and_the_status_tell_what_is_loaded():
    async with local_node([started("a"), started("b", startup=True)]) as local, client_of(local) as client:
        assert story(local) == ["own wants b", "b in"]
        async with client.get("/v1/models") as got:
            ready = {entry["id"]: entry["leaseway"]["ready"] for entry in (await got.json())["data"]}
        assert ready == {"a": False, "b": True}
        async with client.get("/health") as got:
            assert (await got.json())["models"] == {"a": True, "b": True}
        async with client.get("/cluster/v1/status") as got:
            (runtime,) = (await got.json())["runtimes"]
        assert (runtime["runtime"], runtime["resident"]) == ("gpu0", "b")
        local.node.snapshot("asked")
        (snapshot,) = local.of("status.snapshot")
        assert isinstance(snapshot, NodeSnapshot)
        assert [state.resident for state in snapshot.runtimes] == ["b"]


async def test_requests_for_both_models_at_once_are_all_answered_and_loads_stay_few():
    async with local_node([started("a"), started("b")]) as local, client_of(local) as client:
        wanted = ["a", "b"] * 8
        got = await asyncio.gather(*(ask(client, model) for model in wanted))
        assert got == [(200, "n1")] * len(wanted)
        assert len([fact for fact in local.facts if isinstance(fact, Loaded)]) <= 3, story(local)


async def test_a_model_with_a_runtime_of_its_own_is_up_all_the_time_beside_them():
    alone = started("c", runtime="")
    async with local_node([started("a"), started("b"), alone]) as local, client_of(local) as client:
        assert len(engines()) == 2
        assert await ask(client, "b") == (200, "n1")
        assert await ask(client, "c") == (200, "n1")
        assert "c out" not in story(local)


async def test_a_loaded_engine_that_dies_is_told_and_the_next_request_loads_it_again():
    async with local_node([started("a"), started("b")]) as local, client_of(local) as client:
        os.kill(engines()[0], signal.SIGKILL)
        (fact,) = await local.said("model.load_failed")
        assert isinstance(fact, LoadFailed)
        assert (fact.model, fact.reason) == ("a", "engine_down")
        assert await ask(client, "a") == (200, "n1")
        assert story(local)[-2:] == ["own wants a", "a in"]


async def test_a_load_that_hangs_has_failed_after_its_timeout_and_its_neighbour_is_served_again():
    hangs = started("b", command=("sleep", "100"), load_timeout_s=1)
    async with local_node([started("a"), hangs]) as local, client_of(local) as client:
        assert await ask(client, "b") == (503, "model_unavailable")
        assert [told for told in story(local) if told.startswith("b failed: not ready within 1 s")]
        assert await ask(client, "a") == (200, "n1")


async def test_a_model_that_cannot_be_loaded_is_refused_and_its_neighbour_serves_on():
    broken = started("b", command=("/does/not/exist",))
    async with local_node([started("a"), broken]) as local, client_of(local) as client:
        assert await ask(client, "b") == (503, "model_unavailable")
        assert "b failed: engine command '/does/not/exist': No such file or directory" in story(local)
        assert await ask(client, "a") == (200, "n1")


async def test_a_request_for_another_model_does_not_wait_for_the_first_one_to_start():
    never = started("a", command=("sleep", "60"))
    async with local_node([never, started("b")], up=False) as local, client_of(local) as client:
        await until("the first to be started", lambda: local.node.models[ModelId("a")].life._child)
        assert await ask(client, "b") == (200, "n1")
        assert [pid for pid, command in children(os.getpid()) if command[:1] == ["sleep"]] == []


async def test_a_request_for_the_model_that_is_being_started_waits_for_it_and_loads_nothing_twice():
    async with local_node([started("a"), started("b")], up=False) as local, client_of(local) as client:
        assert await ask(client, "a") == (200, "n1")
        assert story(local)[-1] == "a in"
        assert len([fact for fact in local.facts if isinstance(fact, Loaded)]) == 1
        assert local.node.models[ModelId("a")].serving.ready


async def test_a_node_that_drains_loads_what_its_held_requests_need_and_serves_them_all():
    async with local_node([started("a"), started("b")]) as local, client_of(local) as client:
        asking = [asyncio.ensure_future(ask(client, model)) for model in ("a", "b", "a", "b")]
        await until("requests of the other model to be held", lambda: local.counts("b")[0] == 2)
        assert await local.node.drain(20)
        assert await asyncio.gather(*asking) == [(200, "n1")] * 4


# -- servers that hold several models -----------------------------------------------------------------------------------


def told_to(server: OddServer, name: str, **more: object) -> NodeModel:
    return model_at(server.url, id=name, local_id=f"x-{name}", runtime="gpu0", **more)


def orders(server: OddServer) -> list[tuple[str, object]]:
    return [(heard.path, heard.json().get("model")) for heard in server.heard]


async def test_a_server_is_told_to_unload_and_load_by_its_urls_with_the_name_it_has_for_the_model():
    async with odd_server() as server:
        urls = {"load_url": f"{server.url}/load", "unload_url": f"{server.url}/unload"}
        odd = told_to(server, "b", **urls, unload_body='{"model": "x-b", "keep_alive": 0}')
        async with local_node([told_to(server, "a", **urls), odd]) as local, client_of(local) as client:
            assert await ask(client, "b") == (200, "n1")
            assert await ask(client, "a") == (200, "n1")
        assert orders(server) == [
            ("/load", "x-a"),
            ("/unload", "x-a"),
            ("/load", "x-b"),
            (PATH, "x-b"),
            ("/unload", "x-b"),
            ("/load", "x-a"),
            (PATH, "x-a"),
        ]
        assert server.heard[4].json() == {"model": "x-b", "keep_alive": 0}


async def test_an_order_that_is_refused_is_a_failed_load():
    async with odd_server() as server, odd_server(answer({"error": "no"}, 500)) as refusing:
        broken = told_to(server, "b", load_url=f"{refusing.url}/load")
        async with local_node([told_to(server, "a"), broken]) as local, client_of(local) as client:
            assert await ask(client, "b") == (503, "model_unavailable")
            assert "b failed: the order was answered 500" in story(local)
            assert await ask(client, "a") == (200, "n1")


async def test_a_server_that_does_not_unload_makes_the_load_fail_and_its_model_can_be_asked_for_again():
    async def stubborn(heard: Heard, reply: Reply) -> None:
        await answer(status=500 if heard.path == "/unload" else 200)(heard, reply)

    async with odd_server(stubborn) as server:
        urls = {"load_url": f"{server.url}/load", "unload_url": f"{server.url}/unload"}
        two = [told_to(server, "a", **urls), told_to(server, "b", **urls)]
        async with local_node(two) as local, client_of(local) as client:
            # the third failure in a row comes after more than one look at the engine in memory
            assert await ask(client, "b") == (503, "model_unavailable")
            assert "b failed: model a does not leave: the order was answered 500" in story(local)
            assert await ask(client, "a") == (200, "n1")


async def test_a_server_that_loads_on_demand_is_only_looked_at():
    async with (
        odd_server() as server,
        local_node([told_to(server, "a"), told_to(server, "b")]) as local,
        client_of(local) as client,
    ):
        assert await ask(client, "b") == (200, "n1")
        assert orders(server) == [(PATH, "x-b")]
        assert story(local) == ["own wants a", "a in", "a out", "own wants b", "b in"]


# -- a helper that switches ---------------------------------------------------------------------------------------------------


class Pair(msgspec.Struct, kw_only=True):
    """An owner whose engine hangs, and a helper with models `own` (loaded) and `theirs` in one runtime."""

    owner: LocalNode
    helper: LocalNode
    engine: OddServer
    client: aiohttp.ClientSession
    at_helper: aiohttp.ClientSession

    def link(self, **flags: bool) -> None:
        """Link the two, with a lease of two slots."""
        link = msgspec.structs.replace(link_of(self.owner, self.helper, "theirs"), **flags)
        introduce(self.owner, self.helper, link)
        self.lease = grant_of(link, self.owner, self.helper.url)
        assert publish(signed(self.lease), self.helper, self.owner)

    lease: object = None

    async def held(self, **more: object) -> "asyncio.Future[tuple[int, str]]":
        """Send one request to the owner, whose engine is busy."""
        return asyncio.ensure_future(ask(self.client, "public", **more))


@contextlib.asynccontextmanager
async def switching(own: NodeModel | None = None, **more: object) -> AsyncIterator[Pair]:
    """Give the two; an `own` model that is stated is being loaded still."""
    async with (
        odd_server() as engine,
        local_node([model_at(engine.url)], name="n1", depth=1) as owner,
        local_node([own or started("own"), started("theirs", **more)], name="n2", up=own is None) as helper,
        client_of(owner) as client,
        client_of(helper) as at_helper,
    ):
        for local in (owner, helper):
            local.node.view.apply(SettingChanged(name="cluster.offload_restore_delay", value=300_000))
        engine.script = engine.hang()
        busy = asyncio.ensure_future(client.post(PATH, json=CHAT))
        await engine.arrived()
        yield Pair(owner=owner, helper=helper, engine=engine, client=client, at_helper=at_helper)
        busy.cancel()


async def test_a_helper_loads_the_linked_model_serves_and_loads_its_own_back_when_it_is_quiet():
    async with switching() as two:
        two.link(load_if_unloaded=True, restore_after_borrow=True)
        got = await asyncio.gather(*[await two.held() for _ in range(3)])
        assert got == [(200, "n2")] * 3
        await two.helper.said("model.restored")
        await two.helper.said("model.restored")
        assert story(two.helper)[2:] == [
            "own out",
            "borrowed wants theirs",
            "theirs in",
            "own is to come back",
            "theirs out",
            "restore wants own",
            "own in",
        ]
        (loaded,) = [f for f in two.helper.facts if isinstance(f, Loaded) and f.cause == "borrowed"]
        assert loaded.displaced == "own"
        answers = [fact for fact in two.owner.facts if isinstance(fact, LendAnswered)]
        assert sorted(fact.load_us for fact in answers) == [0, 0, loaded.load_us]  # paid once, and told of the first


async def test_the_owner_of_a_lent_stream_hears_too_what_loading_the_model_for_it_took():
    async with switching() as two:
        two.link(load_if_unloaded=True)
        asking = asyncio.ensure_future(two.client.post(PATH, json=CHAT | {"model": "public", "stream": True}))
        (told,) = await two.owner.said("lend.answered")
        (loaded,) = [f for f in two.helper.facts if isinstance(f, Loaded) and f.cause == "borrowed"]
        assert isinstance(told, LendAnswered)
        assert told.load_us == loaded.load_us > 0
        (await asking).close()


async def test_a_request_that_is_at_one_model_of_a_runtime_is_not_taken_at_another_under_its_id():
    async with odd_server() as server, local_node([told_to(server, "a"), told_to(server, "b")]) as local:
        request = RequestId(f"req_{7:032x}")
        offer = BorrowOffer(
            request=request,
            owner=NodeId("n9"),
            link=LinkId("0" * 16),
            lease=LeaseId("0001beef-1-0"),
            work=1,
            slots=2,
            remaining_us=1_000_000,
            lease_live=True,
            may_load=True,
        )
        a, b = (local.node.models[ModelId(name)].serving for name in ("a", "b"))
        mailbox, first = a.borrow(offer)
        assert isinstance(first, AcceptBorrow)
        _, second = b.borrow(offer)
        assert second == RefuseBorrow(request=request, status=409, code="offload_duplicate")
        a.borrow_body(request)
        assert isinstance(await mailbox.next(), Dispatch)
        a.borrower_gone(request)
        a.close(request)


async def test_a_link_that_forbids_loading_gets_its_request_back_unstarted():
    async with switching() as two:
        two.link(load_if_unloaded=False)
        asking = await two.held()
        (fact,) = await two.helper.said("borrow.returned")
        assert isinstance(fact, BorrowReturned)
        assert fact.reason == "load_needed"
        await two.owner.said("lend.returned")
        assert story(two.helper) == ["own wants own", "own in"]
        asking.cancel()


async def test_borrowed_work_that_breaks_off_the_first_load_of_a_helpers_own_model_owes_it_that_load():
    async with switching(own=started("own", command=("sleep", "60"))) as two:
        await two.helper.said("model.load_started")
        two.link(load_if_unloaded=True, restore_after_borrow=True)
        assert await (await two.held()) == (200, "n2")
        await two.helper.said("model.load_started", 3)
        assert story(two.helper) == [
            "own wants own",
            "borrowed wants theirs",
            "theirs in",
            "own is to come back",
            "theirs out",
            "restore wants own",
        ]


async def test_without_the_restore_flag_the_borrowed_model_stays():
    async with switching() as two:
        two.link(load_if_unloaded=True)
        assert await (await two.held()) == (200, "n2")
        await two.helper.said("borrow.finished")
        assert two.helper.of("model.restore_scheduled") == []
        assert two.helper.node.models[ModelId("theirs")].serving.ready


async def test_an_own_request_of_the_helper_while_it_loads_for_borrowed_work_goes_first():
    async with switching() as two:
        two.link(load_if_unloaded=True, restore_after_borrow=True)
        asking = [await two.held() for _ in range(2)]
        await two.helper.said("model.load_started", 2)
        assert await ask(two.at_helper, "own") == (200, "n2")
        returned = await two.helper.said("borrow.returned", 2)
        assert [fact.reason for fact in returned if isinstance(fact, BorrowReturned)] == ["own_work"] * 2
        assert two.helper.of("borrow.started") == []
        for task in asking:
            task.cancel()


async def test_when_a_model_is_loaded_back_follows_its_settings():
    async with local_node([started("a"), started("b")], up=False) as local:
        (room,) = [shared.room for shared in local.node._fleet._shared.values()]
        assert room.config.keep_while_likely
        local.node.view.apply(SettingChanged(name="cluster.offload_restore_delay", value=7_000_000))
        local.node.view.apply(SettingChanged(name="cluster.offload_keep_while_likely", value=0))
        local.node.control_changed()
        assert (room.config.restore_delay_us, room.config.keep_while_likely) == (7_000_000, False)
