"""The operators' desk on a real, provisioned server, with an operator's own rights."""

import asyncio
import functools

import msgspec
import pytest

from adapters.clock import SystemClock
from adapters.keys import new_nkey
from adapters.nats.control import ControlDesk
from adapters.nats.eventsourcing.control_application import ATTEMPTS, ControlApplication
from domain.control import links
from domain.errors import BadLinkError, BadNodeError, BadSettingError, BusError, HistoryError, WrongLastSequenceError
from domain.events import (
    LinkAdded,
    LinkRemoved,
    ModelInfo,
    NodeEnrolled,
    NodeRetired,
    SettingChanged,
    SettingCleared,
    SettingStated,
    SettingUnstated,
)
from domain.events.codec import decode_control, decode_envelope
from domain.ids import ModelId, NodeId, link_id
from domain.subjects import control_aggregate, control_subject

pytestmark = pytest.mark.real
A, B, M, K = NodeId("a"), NodeId("b"), ModelId("m"), ModelId("org/K 7.b*>")
LINK = link_id(A, M, B, K)
ADDED = LinkAdded(link=LINK, owner=A, owner_model=M, helper=B, helper_model=K)
KEY = "U" + "A" * 55


@pytest.fixture
async def desk(nats_server):
    desk = await asyncio.to_thread(ControlDesk, nats_server.url, nats_server.credentials("operator"), "local")
    yield desk
    await asyncio.to_thread(desk.close)


async def ask(method, *args, **kwargs):
    return await asyncio.to_thread(functools.partial(method, *args, **kwargs))


async def stored(nats_server):
    """Return what anybody sees who reads LW_CONTROL with a plain client."""
    client = await nats_server.client("projector")
    js = client.jetstream()
    last = (await js.stream_info("LW_CONTROL")).state.last_seq
    return [await js.get_msg("LW_CONTROL", seq) for seq in range(1, last + 1)]


async def test_a_link_is_stored_once_and_anybody_can_read_it(desk, nats_server):
    assert await ask(desk.add_link, A, M, B, K) == ADDED
    assert await ask(desk.add_link, A, M, B, K) is None
    (message,) = await stored(nats_server)
    envelope = decode_envelope(message.data)
    assert message.subject == f"lw.local.control.links.{LINK}" == control_subject("local", control_aggregate(ADDED))
    assert decode_control(envelope.data) == ADDED
    assert msgspec.json.decode(message.data)["data"]["helper_model"] == K
    assert (envelope.type, envelope.producer, envelope.cluster) == ("control.link_added", "operator", "local")
    assert (envelope.id, envelope.source) == (f"links.{LINK}/1", f"/local/control/links.{LINK}")
    assert envelope.time.endswith("Z")


async def test_a_link_is_removed_and_can_be_added_again(desk):
    await ask(desk.add_link, A, M, B, K)
    assert await ask(desk.remove_link, A, M, B, K) == LinkRemoved(link=LINK, owner=A, owner_model=M)
    with pytest.raises(BadLinkError, match="there is no such link"):
        await ask(desk.remove_link, A, M, B, K)
    assert await ask(desk.links) == ()
    changed = msgspec.structs.replace(ADDED, load_if_unloaded=True)
    assert await ask(desk.add_link, A, M, B, K, load_if_unloaded=True) == changed
    assert await ask(desk.links) == (changed,)


async def test_a_refused_link_stores_nothing(desk, nats_server):
    catalogue = {
        A: {M: ModelInfo(id=M, local_id="m", context=4096, hash="1" * 64)},
        B: {K: ModelInfo(id=K, local_id="k", context=4096, hash="2" * 64)},
    }
    with pytest.raises(BadLinkError, match="different weights"):
        await ask(desk.add_link, A, M, B, K, catalogue=catalogue)
    assert await stored(nats_server) == []
    assert await ask(desk.add_link, A, M, B, K, catalogue=catalogue, different_weights=True)


def command(owner, helper, **flags):
    return links.AddLink(owner=owner, owner_model=M, helper=helper, helper_model=M, **flags)


async def test_links_are_made_together_and_only_where_they_differ(desk, nats_server):
    pair = [command(A, B, load_if_unloaded=True), command(B, A, load_if_unloaded=True)]
    made = await ask(desk.add_links, pair)
    assert [(link.owner, link.helper) for link in made] == [(A, B), (B, A)]
    assert await ask(desk.add_links, [*pair, command(A, NodeId("c"))]) == (
        LinkAdded(link=link_id(A, M, NodeId("c"), M), owner=A, owner_model=M, helper=NodeId("c"), helper_model=M),
    )
    assert await ask(desk.add_links, pair) == ()
    assert len(await ask(desk.links)) == len(await stored(nats_server)) == 3


async def test_of_links_together_one_that_may_not_be_leaves_none(desk, nats_server):
    with pytest.raises(BadLinkError, match="not to itself"):
        await ask(desk.add_links, [command(A, B), command(A, A)])
    too_many = [command(A, NodeId(f"n{at}")) for at in range(1001)]
    with pytest.raises(BadLinkError, match="at most 1000 at once, got 1001"):
        await ask(desk.add_links, too_many)
    assert await stored(nats_server) == []
    assert len(await ask(desk.add_links, too_many[:1000])) == 1000


async def test_settings_change_together_or_not_at_all(desk, nats_server):
    changed = await ask(desk.set_settings, {"cluster.offload_probe_idle": "90s", "scheduling_backend_depth": 4})
    assert changed == (
        SettingChanged(name="cluster.offload_probe_idle", value=90_000_000),
        SettingChanged(name="cluster.scheduling_backend_depth", value=4),
    )
    with pytest.raises(BadSettingError):
        await ask(desk.set_settings, {"offload_streams": 0, "scheduling_backend_depth": 65})
    settings = await ask(desk.settings)
    assert (settings["offload_probe_idle"], settings["offload_streams"]) == (90_000_000, 1)
    assert len(await stored(nats_server)) == 2


async def test_the_file_is_stated_whole_and_only_where_it_differs(desk, nats_server):
    first = await ask(desk.state_file, {"offload_probe_idle": 7, "offload_streams": 0})
    assert first == (
        SettingStated(name="cluster.offload_probe_idle", value=7),
        SettingStated(name="cluster.offload_streams", value=0),
    )
    assert await ask(desk.state_file, {"offload_probe_idle": 7, "offload_streams": 0}) == ()
    with pytest.raises(BadSettingError):
        await ask(desk.state_file, {"scheduling_backend_depth": 65})
    await ask(desk.set_setting, "offload_streams", "on")
    assert await ask(desk.state_file, {"offload_streams": 0}) == (SettingUnstated(name="cluster.offload_probe_idle"),)
    view = await ask(desk.view)
    assert (view.setting("offload_streams"), view.source("offload_streams")) == (1, "override")
    assert (view.setting("offload_probe_idle"), view.source("offload_probe_idle")) == (5_000_000, "default")
    assert await ask(desk.clear_settings, ["offload_streams", "offload_probe_idle"]) == (
        SettingCleared(name="cluster.offload_streams"),
    )
    assert (await ask(desk.view)).setting("offload_streams") == 0
    assert len(await stored(nats_server)) == 5


async def test_a_cleared_setting_falls_back(desk):
    assert await ask(desk.set_setting, "offload_streams", "off") == SettingChanged(
        name="cluster.offload_streams", value=0
    )
    assert await ask(desk.set_setting, "offload_streams", 0) is None
    assert await ask(desk.clear_setting, "offload_streams") == SettingCleared(name="cluster.offload_streams")
    assert await ask(desk.clear_setting, "offload_streams") is None
    assert (await ask(desk.settings))["offload_streams"] == 1


async def test_a_node_is_enrolled_moved_and_retired(desk):
    enrolled = NodeEnrolled(node=A, public_key=KEY, url="http://a:1")
    assert await ask(desk.enroll_node, A, KEY, "http://a:1") == enrolled
    assert await ask(desk.enroll_node, A, KEY, "http://a:1") is None
    assert (await ask(desk.enroll_node, A, KEY, "http://a:2")).url == "http://a:2"
    assert (await ask(desk.view)).node(A).url == "http://a:2"
    assert await ask(desk.retire_node, A) == NodeRetired(node=A)
    assert await ask(desk.retire_node, A) is None
    assert (await ask(desk.view)).nodes() == ()
    with pytest.raises(BadNodeError):
        await ask(desk.retire_node, B)


class Overtaken:
    """The links' decider of an operator who thinks so long that `rival` acts in between, `times` times."""

    INITIAL, evolve = links.INITIAL, staticmethod(links.evolve)

    def __init__(self, rival, times):
        self.rival, self.times, self.decided = rival, times, []

    def decide(self, command, state):
        self.decided.append(state)
        if len(self.decided) <= self.times:
            self.rival(len(self.decided))
        return links.decide(command, state)


@pytest.fixture
async def second(nats_server):
    credentials = nats_server.credentials("operator")
    application = await asyncio.to_thread(ControlApplication, nats_server.url, credentials, "local", SystemClock())
    yield application
    await asyncio.to_thread(application.close)


ADD = links.AddLink(owner=A, owner_model=M, helper=B, helper_model=K)


async def test_of_two_operators_racing_one_conflicts_and_decides_again(desk, second, nats_server):
    slow = Overtaken(lambda _: desk.add_link(A, M, B, K), times=1)
    assert await ask(second.act, f"links.{LINK}", slow, ADD) == ()
    assert slow.decided == [None, ADDED]
    assert len(await stored(nats_server)) == 1


async def test_who_is_overtaken_once_by_another_change_still_gets_theirs(desk, second):
    slow = Overtaken(lambda _: desk.add_link(A, M, B, K), times=1)
    wanted = msgspec.structs.replace(ADD, restore_after_borrow=True)
    changed = msgspec.structs.replace(ADDED, restore_after_borrow=True)
    assert await ask(second.act, f"links.{LINK}", slow, wanted) == [changed]
    assert await ask(desk.links) == (changed,)


async def test_who_is_always_overtaken_gives_up_and_has_changed_nothing(desk, second):
    slow = Overtaken(lambda turn: desk.add_link(A, M, B, K, load_if_unloaded=turn % 2 == 1), times=ATTEMPTS)
    with pytest.raises(WrongLastSequenceError, match=f"links.{LINK}"):
        await ask(second.act, f"links.{LINK}", slow, msgspec.structs.replace(ADD, restore_after_borrow=True))
    assert len(slow.decided) == ATTEMPTS
    assert not (await ask(desk.links))[0].restore_after_borrow


async def test_operators_who_add_the_same_links_at_once_add_each_once(desk, nats_server):
    credentials = nats_server.credentials("operator")
    other = await asyncio.to_thread(ControlDesk, nats_server.url, credentials, "local")
    models = [ModelId(f"m{number}") for number in range(10)]

    def add_all(operator):
        return [operator.add_link(A, model, B, K) for model in models]

    results = await asyncio.gather(asyncio.to_thread(add_all, desk), asyncio.to_thread(add_all, other))
    await asyncio.to_thread(other.close)
    assert all((mine is None) != (theirs is None) for mine, theirs in zip(*results, strict=True))
    assert len(await stored(nats_server)) == len(models)


async def test_what_is_no_control_event_is_named_and_not_passed_over(desk, nats_server):
    client = await nats_server.client("operator")
    headers = {"Es-V": "1", "Es-T": "control.link_added"}
    await client.jetstream().publish(f"lw.local.control.links.{LINK}", b'{"no":"envelope"}', headers=headers)
    with pytest.raises(HistoryError, match=f"links.{LINK}/1"):
        await ask(desk.view)
    with pytest.raises(HistoryError, match=f"links.{LINK}/1"):
        await ask(desk.add_link, A, M, B, K)


async def test_a_node_has_no_desk(nats_server):
    with pytest.raises(BusError, match="refused"):
        await asyncio.to_thread(lambda: ControlDesk(nats_server.url, nats_server.credentials("n1"), "local").links())


async def test_unknown_credentials_are_refused_in_a_sentence(nats_server):
    stranger = msgspec.structs.replace(nats_server.credentials("operator"), nkey_seed=new_nkey()[0])
    with pytest.raises(BusError, match=r"no connection: .*[Aa]uthorization"):
        await asyncio.to_thread(ControlDesk, nats_server.url, stranger, "local")


async def test_a_desk_outlives_a_restart_of_the_server(desk, nats_server):
    await ask(desk.add_link, A, M, B, K)
    await nats_server.restart()
    assert await ask(desk.links) == (ADDED,)
    assert await ask(desk.remove_link, A, M, B, K)


async def test_a_closed_desk_says_so_and_may_be_closed_again(desk):
    await asyncio.to_thread(desk.close)
    await asyncio.to_thread(desk.close)
    with pytest.raises(BusError, match="closed"):
        await ask(desk.links)
