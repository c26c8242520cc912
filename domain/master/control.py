"""Control events into `State.control`, and into nothing else (see domain.master.fold on why)."""

from domain.events import LinkAdded, LinkRemoved, NodeEnrolled, NodeRetired, SettingChanged, SettingCleared
from domain.master.inputs import ControlInput
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
            control.touched_all = True
        case SettingCleared(name=name):
            control.settings.pop(name, None)
            control.touched_all = True
        case NodeEnrolled(node=node, public_key=public_key, url=url):
            control.roster[node] = Enrolled(public_key, url)
        case NodeRetired(node=node):
            known = control.roster.get(node, Enrolled("", ""))
            control.roster[node] = Enrolled(known.public_key, known.url, retired=True)
            control.touched_all = True
        case None:
            pass


def _add(control: Control, event: LinkAdded) -> None:
    control.links[event.link] = event
    owner, helper = owner_key(event.owner, event.owner_model), owner_key(event.helper, event.helper_model)
    control.by_owner[owner] = sorted({*control.by_owner.get(owner, ()), event.link})
    control.by_helper[helper] = sorted({*control.by_helper.get(helper, ()), event.link})
    control.touched[owner] = "link"


def _remove(control: Control, event: LinkRemoved) -> None:
    added = control.links.pop(event.link, None)
    if added is None:
        return
    owner, helper = owner_key(added.owner, added.owner_model), owner_key(added.helper, added.helper_model)
    for index, key in ((control.by_owner, owner), (control.by_helper, helper)):
        index[key] = [link for link in index[key] if link != event.link]
        if not index[key]:
            del index[key]
    control.touched[owner] = "link"
