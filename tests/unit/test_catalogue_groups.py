"""Symmetric routing groups become links: two for each pair on different nodes, restoring where the helper did."""

import msgspec
import pytest

from domain.catalogue.groups import MEMBERS_MAX, Group, Groups, Member, plan_import
from domain.control.links import INITIAL, decide
from domain.errors import BadLinkError
from domain.events import LinkAdded, ModelInfo
from domain.ids import ModelId, NodeId


def member(end, *, restore=False):
    node, _, model = end.partition("/")
    return Member(node=NodeId(node), model=ModelId(model), restore=restore)


def group(*members, name="chat"):
    return Group(name=name, members=tuple(one if isinstance(one, Member) else member(one) for one in members))


def told(plan):
    return [
        (f"{c.owner}/{c.owner_model}", f"{c.helper}/{c.helper_model}", c.restore_after_borrow, planned.outcome)
        for planned in plan.links
        for c in [planned.command]
    ]


def applied(plan, standing=None):
    """The links that stand once the plan's commands are done."""
    links = dict(standing or {})
    for command in plan.commands:
        for event in decide(command, links.get(command.link, INITIAL)):
            assert isinstance(event, LinkAdded)
            links[event.link] = event
    return links


def catalogue(*ends, **odd):
    served: dict[NodeId, dict[ModelId, ModelInfo]] = {}
    for end in ends:
        node, _, model = end.partition("/")
        info = ModelInfo(id=ModelId(model), local_id=model, **{"context": 4096, "hash": "1" * 64, **odd.get(node, {})})
        served.setdefault(NodeId(node), {})[ModelId(model)] = info
    return served


def test_a_pair_on_different_nodes_becomes_two_links_each_restoring_where_its_helper_did():
    plan = plan_import([group("b/m", member("a/k", restore=True))], {}, None)
    assert told(plan) == [("a/k", "b/m", False, "made"), ("b/m", "a/k", True, "made")]
    assert all(command.load_if_unloaded for command in plan.commands)


def test_every_pair_of_a_group_is_linked_both_ways():
    plan = plan_import([group("a/m", "b/m", "c/m", "d/m")], {}, None)
    assert len(plan.commands) == 4 * 3
    assert len({command.link for command in plan.commands}) == 12


def test_a_pair_on_one_node_is_told_and_left_out():
    plan = plan_import([group("a/m", "a/k", "b/m")], {}, None)
    assert [(pair.node, pair.model, pair.other) for pair in plan.same_node] == [("a", "k", "m")]
    assert [(owner, helper) for owner, helper, _, _ in told(plan)] == [
        ("a/k", "b/m"),
        ("a/m", "b/m"),
        ("b/m", "a/k"),
        ("b/m", "a/m"),
    ]


def test_a_pair_of_several_groups_is_linked_once_and_restores_if_one_of_them_says_so():
    plan = plan_import([group("a/m", "b/m"), group("b/m", member("a/m", restore=True), name="other")], {}, None)
    assert told(plan) == [("a/m", "b/m", False, "made"), ("b/m", "a/m", True, "made")]


def test_importing_again_changes_nothing_more():
    groups = [group("a/m", member("b/m", restore=True), "c/m")]
    standing = applied(plan_import(groups, {}, None))
    again = plan_import(groups, standing, None)
    assert again.commands == ()
    assert {planned.outcome for planned in again.links} == {"stands"}


def test_a_link_that_stands_with_other_flags_is_changed_to_what_the_group_was():
    (first, second) = plan_import([group("a/m", "b/m")], {}, None).commands
    bare = msgspec.structs.replace(first, load_if_unloaded=False)
    (added,) = decide(bare, None)
    assert isinstance(added, LinkAdded)
    standing = {first.link: added}
    plan = plan_import([group("a/m", "b/m")], standing, None)
    assert [planned.outcome for planned in plan.links] == ["changed", "made"]
    assert applied(plan, standing)[first.link].load_if_unloaded
    assert plan.commands == (first, second)


def test_pairs_that_cannot_be_linked_are_listed_with_the_reason_and_the_others_remain():
    served = catalogue("a/m", "b/m", "c/m", c={"slots": 4})
    plan = plan_import([group("a/m", "b/m", "c/m", "d/m")], {}, served)
    assert [(owner, helper) for owner, helper, _, outcome in told(plan) if outcome == "made"] == [
        ("a/m", "b/m"),
        ("b/m", "a/m"),
    ]
    whys = [planned.why for planned in plan.refused]
    assert len(whys) == 10
    assert any("serves_several" in why for why in whys)
    assert any("node d is unknown" in why for why in whys)


def test_different_weights_want_the_operators_word_which_only_their_links_keep():
    served = catalogue("a/m", "b/m", "c/m", c={"hash": "2" * 64})
    groups = [group("a/m", "b/m", "c/m")]
    silent = plan_import(groups, {}, served)
    assert len(silent.refused) == 4
    assert all("--different-weights" in planned.why for planned in silent.refused)
    said = plan_import(groups, {}, served, different_weights=True)
    assert [command.different_weights for command in said.commands] == [
        "c" in {command.owner, command.helper} for command in said.commands
    ]
    assert not said.refused


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        (group("a/m", "a/m"), "group 'chat': member a/m must be stated once only"),
        (group("A/m", "b/m"), "group 'chat': .*must match"),
        (group("a/", "b/m"), "group 'chat': .*1 to 256 characters"),
        (group(*(f"n{at}/m" for at in range(MEMBERS_MAX + 1))), "at most 64 members, got 65"),
    ],
)
def test_what_is_no_group_is_refused_whole(bad, rule):
    with pytest.raises(BadLinkError, match=rule):
        plan_import([group("a/m", "b/m", name="good"), bad], {}, None)


def test_two_spellings_of_one_model_are_one_member():
    with pytest.raises(BadLinkError, match="once only"):
        plan_import([group("a/mode\u0301", "a/mod\u00e9")], {}, None)


def test_a_group_of_one_or_none_is_no_link():
    plan = plan_import([group("a/m"), group()], {}, None)
    assert (plan.links, plan.same_node) == ((), ())


def test_a_file_with_a_key_that_means_nothing_here_is_no_file_of_groups():
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"groups": [{"members": [{"node": "a", "model": "m", "restores": True}]}]}, Groups)
