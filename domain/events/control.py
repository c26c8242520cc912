"""Events of the control aggregates: what operators decided. They live in LW_CONTROL, one subject an aggregate."""

from domain.events.base import EventBody
from domain.ids import LinkId, ModelId, NodeId


class LinkAdded(EventBody, frozen=True, kw_only=True, tag="control.link_added"):
    """An owner's model may lend to a helper's model."""

    link: LinkId
    owner: NodeId
    owner_model: ModelId
    helper: NodeId
    helper_model: ModelId
    load_if_unloaded: bool = False
    restore_after_borrow: bool = False
    different_weights: bool = False
    """The operator said that the two models have different weights, and meant it."""


class LinkRemoved(EventBody, frozen=True, kw_only=True, tag="control.link_removed"):
    """A link is gone; what is lent over it stays out until it is answered."""

    link: LinkId
    owner: NodeId
    owner_model: ModelId


class SettingChanged(EventBody, frozen=True, kw_only=True, tag="control.setting_changed"):
    """A stored override of a `cluster.*` setting, in the setting's own unit."""

    name: str
    value: int


class SettingCleared(EventBody, frozen=True, kw_only=True, tag="control.setting_cleared"):
    """The override is gone; file value or default holds."""

    name: str


class SettingStated(EventBody, frozen=True, kw_only=True, tag="control.setting_stated"):
    """The value that the configuration file states; it holds while nothing overrides it."""

    name: str
    value: int


class SettingUnstated(EventBody, frozen=True, kw_only=True, tag="control.setting_unstated"):
    """The configuration file states the setting no more."""

    name: str


class NodeEnrolled(EventBody, frozen=True, kw_only=True, tag="control.node_enrolled"):
    """A node has credentials and may speak."""

    node: NodeId
    public_key: str
    """Its nkey (ed25519), as NATS writes it (U...)."""
    url: str


class NodeRetired(EventBody, frozen=True, kw_only=True, tag="control.node_retired"):
    """A node will not come back: what it had open is orphaned."""

    node: NodeId


ControlEvent = (
    LinkAdded
    | LinkRemoved
    | SettingChanged
    | SettingCleared
    | SettingStated
    | SettingUnstated
    | NodeEnrolled
    | NodeRetired
)
"""Every control event."""
