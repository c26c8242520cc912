"""Links by their helper."""

from domain.events import LinkAdded
from domain.master.state import State, owner_key


def links_to(state: State, helper_key: str) -> list[LinkAdded]:
    """Return every link by which something may be at the helper's model: the removed ones whose rest is still out as well."""
    control = state.control
    links = [control.links[link] for link in control.by_helper.get(helper_key, ())]
    if control.gone:
        for link in sorted(control.gone):
            added = control.gone[link]
            if owner_key(added.helper, added.helper_model) == helper_key:
                links.append(added)
    return links
