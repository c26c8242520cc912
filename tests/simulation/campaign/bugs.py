"""Every bug to plant, each by name: what the campaign must find.

with planted("desk_without_depth"): run_seed(7)
"""

from tests.simulation.campaign import bugs_of_history, bugs_of_nodes
from tests.simulation.campaign.planting import BUGS, planted

FAMILIES = (bugs_of_history, bugs_of_nodes)
"""Importing them fills the list."""

__all__ = ["BUGS", "FAMILIES", "planted"]
