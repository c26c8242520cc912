"""Control events into `State.control`, and into nothing else (see domain.master.fold on why)."""

from functools import partial

from domain.control.settings import PREFIX, SETTINGS
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
from domain.ids import LinkId
from domain.master.fits import FitRules, rules_of
from domain.master.inputs import ControlInput
from domain.master.links import forget_ways
from domain.master.state import Control, Enrolled, State, owner_key


def fold_control(state: State, given: ControlInput) -> None:
    """Fold one message of LW_CONTROL."""
    state.chi = given.seq
    control = state.control
    match given.event:
        case LinkAdded():
            _add(control, given.event)
        case LinkRemoved():
            _remove(control, given.event)
        case SettingChanged(name=name, value=value):
            control.settings[name] = value
            _settings_changed(control)
        case SettingCleared(name=name):
            control.settings.pop(name, None)
            _settings_changed(control)
        case SettingStated(name=name, value=value):
            control.stated[name] = value
            _settings_changed(control)
        case SettingUnstated(name=name):
            control.stated.pop(name, None)
            _settings_changed(control)
        case NodeEnrolled(node=node, public_key=public_key, url=url):
            control.roster[node] = Enrolled(public_key, url)
            control.retiring.pop(node, None)
        case NodeRetired(node=node):
            known = control.roster.get(node, Enrolled("", ""))
            control.roster[node] = Enrolled(known.public_key, known.url, retired=True)
            control.retiring[node] = True
            for link in control.links.values():
                if node in {link.owner, link.helper}:
                    control.touched[owner_key(link.owner, link.owner_model)] = "link"
        case None:
            pass


def setting(control: Control, name: str) -> int:
    """Return what holds for a setting (bare name): the operator's override, else the file's value, else the default.

    Kept beside the state until a setting changes: a plan asks for the same few for every link.
    """
    known: int | None = control.__dict__.get(name)
    if known is None:
        decided = _decided(control, name)
        known = control.__dict__[name] = SETTINGS[name].default if decided is None else decided
    return known


def lane_rules(control: Control, lane: str) -> FitRules:
    """Return the rules that prices of a lane's models follow, kept as a setting is.

    By whether it is text, and no more: a node may call its lanes as it likes, and as many as it likes.
    """
    name = "rules of text" if lane == "text" else "rules of others"
    known: FitRules | None = control.__dict__.get(name)
    if known is None:
        known = control.__dict__[name] = rules_of(partial(setting, control), lane)
    return known


def depth(control: Control, registered: int) -> int:
    """Return how many requests a node's engine gets at once: what was decided for all nodes, else what it registered itself."""
    if "decided depth" not in control.__dict__:
        control.__dict__["decided depth"] = _decided(control, "scheduling_backend_depth")
    value: int | None = control.__dict__["decided depth"]
    return registered if value is None else value


def _decided(control: Control, name: str) -> int | None:
    full = PREFIX + name
    value = control.settings.get(full)
    return control.stated.get(full) if value is None else value


def _settings_changed(control: Control) -> None:
    control.__dict__.clear()
    control.touched_all = True


def _add(control: Control, event: LinkAdded) -> None:
    forget_ways(control)
    _drop(control, event.link)
    control.gone.pop(event.link, None)
    control.links[event.link] = event
    control.added[event.link] = True
    owner, helper = owner_key(event.owner, event.owner_model), owner_key(event.helper, event.helper_model)
    control.by_owner[owner] = sorted({*control.by_owner.get(owner, ()), event.link})
    control.by_helper[helper] = sorted({*control.by_helper.get(helper, ()), event.link})
    control.touched[owner] = "link"


def _remove(control: Control, event: LinkRemoved) -> None:
    forget_ways(control)
    added = _drop(control, event.link)
    if added is not None:
        control.gone[event.link] = added
        control.touched[owner_key(added.owner, added.owner_model)] = "link"


def _drop(control: Control, removed: LinkId) -> LinkAdded | None:
    """Take a link out of what may be lent over, and return it."""
    added = control.links.pop(removed, None)
    if added is None:
        return None
    owner, helper = owner_key(added.owner, added.owner_model), owner_key(added.helper, added.helper_model)
    for index, key in ((control.by_owner, owner), (control.by_helper, helper)):
        index[key] = [link for link in index[key] if link != removed]
        if not index[key]:
            del index[key]
    return added
