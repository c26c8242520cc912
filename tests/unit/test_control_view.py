import pytest

from domain.control.view import ControlView
from domain.errors import BadSettingError
from domain.events import (
    LinkAdded,
    LinkRemoved,
    NodeEnrolled,
    NodeRetired,
    SettingChanged,
    SettingCleared,
    SettingStated,
    SettingUnstated,
)
from domain.ids import ModelId, NodeId, link_id

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
M = ModelId("m")


def added(owner, helper, **flags):
    return LinkAdded(
        link=link_id(owner, M, helper, M), owner=owner, owner_model=M, helper=helper, helper_model=M, **flags
    )


def enrolled(node, url="http://n:1"):
    return NodeEnrolled(node=node, public_key="U" + "A" * 55, url=url)


def view_of(*events):
    view = ControlView()
    for event in events:
        view.apply(event)
    return view


def ids(links):
    return [link.link for link in links]


def test_links_are_found_by_either_end_and_come_in_order_of_id():
    links = [added(A, B), added(A, C), added(B, A), added(C, A)]
    view = view_of(*reversed(links))
    assert ids(view.links()) == sorted(ids(links))
    assert ids(view.links_lent_by(A, M)) == sorted(ids(links[:2]))
    assert ids(view.links_borrowed_by(A, M)) == sorted(ids(links[2:]))
    assert view.link(links[0].link) == links[0]


def test_a_model_is_enrolled_while_it_stands_in_a_link_as_owner_or_as_helper():
    link = added(A, B)
    view = view_of(link)
    assert view.is_enrolled(A, M)
    assert view.is_enrolled(B, M)
    assert not view.is_enrolled(C, M)
    view.apply(LinkRemoved(link=link.link, owner=A, owner_model=M))
    assert not view.is_enrolled(A, M)
    assert not view.is_enrolled(B, M)
    assert view.links() == ()


def test_one_of_two_links_removed_leaves_the_model_enrolled():
    view = view_of(added(A, B), added(A, C), LinkRemoved(link=added(A, B).link, owner=A, owner_model=M))
    assert view.links_lent_by(A, M) == (added(A, C),)
    assert not view.is_enrolled(B, M)


def test_a_link_added_again_replaces_the_older_one():
    view = view_of(added(A, B), added(A, B, load_if_unloaded=True))
    assert view.links() == view.links_lent_by(A, M) == (added(A, B, load_if_unloaded=True),)


def test_an_event_applied_twice_changes_nothing_more():
    events = [added(A, B), enrolled(A), SettingChanged(name="cluster.offload_streams", value=0), NodeRetired(node=B)]
    events += [
        SettingStated(name="cluster.offload_streams", value=1),
        LinkRemoved(link=added(A, B).link, owner=A, owner_model=M),
        SettingCleared(name="cluster.offload_streams"),
    ]
    twice = [event for event in events for _ in range(2)]
    assert view_of(*twice).as_events() == view_of(*events).as_events()


def test_a_retired_node_is_no_node_until_it_is_enrolled_again():
    view = view_of(enrolled(B), enrolled(A), NodeRetired(node=B))
    assert view.nodes() == (enrolled(A),)
    assert view.node(B) is None
    assert view.is_retired(B)
    view.apply(enrolled(B, url="http://new:1"))
    assert view.node(B) == enrolled(B, url="http://new:1")
    assert not view.is_retired(B)


def test_a_setting_is_the_override_else_the_files_value_else_the_default():
    name = "cluster.offload_probe_idle"
    view, seen = ControlView(), []
    for event in (
        SettingStated(name=name, value=9),
        SettingChanged(name=name, value=7),
        SettingStated(name=name, value=8),
        SettingCleared(name=name),
        SettingUnstated(name=name),
    ):
        view.apply(event)
        seen.append((view.setting(name), view.setting("offload_probe_idle"), view.source(name)))
    assert [(value, source) for value, _, source in seen] == [
        (9, "file"),
        (7, "override"),
        (7, "override"),
        (8, "file"),
        (5_000_000, "default"),
    ]
    assert all(full == bare for full, bare, _ in seen)
    assert view_of(SettingChanged(name=name, value=0)).setting(name) == 0


def test_all_settings_come_in_order_of_name_and_an_unknown_stored_one_is_kept_apart():
    view = view_of(SettingChanged(name="cluster.older", value=1))
    assert list(view.settings()) == sorted(view.settings())
    assert "older" not in view.settings()
    assert view.overrides() == {"older": 1}
    for ask in (view.setting, view.source):
        with pytest.raises(BadSettingError):
            ask("older")


def test_a_view_made_of_its_own_events_is_the_same_view():
    view = view_of(added(A, B), added(B, A), enrolled(A), enrolled(B), NodeRetired(node=B))
    view.apply(SettingChanged(name="cluster.offload_streams", value=0))
    view.apply(SettingStated(name="cluster.offload_streams", value=1))
    view.apply(SettingStated(name="cluster.offload_probe_idle", value=3))
    again = view_of(*view.as_events())
    assert again.as_events() == view.as_events()
    assert again.is_retired(B)
    assert (again.setting("offload_streams"), again.setting("offload_probe_idle")) == (0, 3)
    assert again.stated() == {"offload_probe_idle": 3, "offload_streams": 1}
