"""Every policy by the name that `--policies` knows."""

import difflib
from collections.abc import Callable
from typing import Final

from domain.errors import BadConfigError
from services.simulator.model.policies import binding
from services.simulator.model.policies.seed import Seed
from services.simulator.model.policies.steal import Steal
from services.simulator.model.policies.water import Water, WaterRule
from services.simulator.model.policy import Policy

POLICIES: Final[dict[str, tuple[str, Callable[[], Policy]]]] = {
    "none": ("no lending: every request waits at its owner", lambda: binding.Binding("none", binding.stay)),
    "round_robin": ("bound on arrival, in turn", lambda: binding.Binding("round_robin", binding.RoundRobin())),
    "jsq": ("bound on arrival to the shortest queue", lambda: binding.Binding("jsq", binding.shortest_queue)),
    "power_of_two": (
        "bound on arrival to the shorter of two random queues",
        lambda: binding.Binding("power_of_two", binding.best_of_two),
    ),
    "least_work": (
        "bound on arrival to the least work, blind to loads",
        lambda: binding.Binding("least_work", binding.least_work),
    ),
    "ect": (
        "bound on arrival to the earliest predicted completion, loads included",
        lambda: binding.Binding("ect", binding.earliest_completion),
    ),
    "steal": ("held, and pulled by whoever is idle", Steal),
    "seed": ("the first rule: one lease and probes (same as seed_probe)", lambda: Seed("seed", "probe")),
    "seed_single": ("the first rule: one lease", lambda: Seed("seed_single", "single")),
    "seed_probe": ("the first rule: one lease and probes", lambda: Seed("seed_probe", "probe")),
    "seed_multi": ("the first rule: a lease for each helper that pays", lambda: Seed("seed_multi", "multi")),
    "water": ("leases for the earliest completion slots, priced in job-seconds", lambda: Water("water")),
    "water_pending": (
        "water, which also keeps the second slot while a decision is on its way",
        lambda: Water("water_pending", WaterRule(hold="pending")),
    ),
}


def policy(name: str) -> Policy:
    """Return a fresh policy; raise BadConfigError for a name that there is not."""
    check(name)
    return POLICIES[name][1]()


def check(name: str) -> None:
    """Raise BadConfigError if there is no policy `name`."""
    if name not in POLICIES:
        known = [*POLICIES, "ours"]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise BadConfigError(f"--policies: unknown policy {name!r}; {hint}")
