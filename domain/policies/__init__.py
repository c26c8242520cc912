"""Which code decides under which policy: a commit names its policy, and is decided again by the rules of that name alone.

The rules of today are `domain.master`. Older ones stay here, each as a frozen copy in a package of its own, for as long as a
history that they decided can exist (docs/contributing/freeze-a-policy.md).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from domain.errors import UnknownPolicyError
from domain.events.commit import Commit
from domain.master import state as _state
from domain.master import step as _step
from domain.policies.frozen import FROZEN


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one name, as the functions that a history is moved on with.

    Types of state differ between policies: a state is only ever given to the functions of its own policy.
    """

    name: str
    begun: Callable[[int, int], Any]
    """(hi, chi) -> the state with which a generation begins."""
    decode_state: Callable[[bytes], Any]
    encode_state: Callable[[Any], bytes]
    fold_into: Callable[..., None]
    """(state, span, control, facts): domain.master.step.fold_into."""
    follow: Callable[[Any, Commit], None]
    """(state, commit): apply its decisions."""
    replay: Callable[..., Any]
    """(state, position, commit, span, sealed=, encoded=): decide again, raise ReplayDiffersError if other bytes result."""
    migrations: Mapping[str, Callable[[bytes], bytes]] = {}
    """Name of an older policy -> how its encoded state becomes one of this policy, where that is more than reading it."""

    def take_over(self, other: "Policy", state: Any) -> Any:
        """Return a state of the policy `other` as one of this policy. Fields that it does not know have their defaults."""
        encoded = other.encode_state(state)
        migrate = self.migrations.get(other.name)
        taken = self.decode_state(migrate(encoded) if migrate is not None else encoded)
        taken.policy = self.name
        return taken


def policy_of(state: Any, step: Any, *, migrations: Mapping[str, Callable[[bytes], bytes]] | None = None) -> Policy:
    """Return the policy of the modules `state` and `step`, which are domain.master's or a frozen copy of them."""
    return Policy(
        name=state.POLICY,
        begun=step.begun,
        decode_state=state.decode_state,
        encode_state=state.encode_state,
        fold_into=step.fold_into,
        follow=step.follow,
        replay=step.replay,
        migrations=migrations or {},
    )


CURRENT: Final = policy_of(_state, _step)
"""The rules that a master of this version decides by."""
KNOWN: Final[Mapping[str, Policy]] = {
    each.name: each for each in (*(policy_of(state, step) for state, step in FROZEN), CURRENT)
}
"""Every policy that this version can decide by, by name."""


def rules_of(stored: Commit, known: Mapping[str, Policy] = KNOWN) -> Policy:
    """Return the rules that decided `stored`.

    Raises:
        UnknownPolicyError: this version does not have them.
    """
    rules = known.get(stored.policy)
    if rules is None:
        raise UnknownPolicyError(stored.version, stored.policy, tuple(sorted(known)))
    return rules
