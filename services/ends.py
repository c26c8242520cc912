"""A model of a node as people write it: NODE/MODEL."""

from domain.errors import BadLinkError
from domain.ids import ModelId, NodeId, model_id, node_id


def end(side: str, text: str) -> tuple[NodeId, ModelId]:
    """Return (node, model) of `NODE/MODEL`, split at the first slash: a model id may hold others.

    Raises:
        BadLinkError: there is no slash, or one of the two has not the form of an id.
    """
    node, slash, model = text.partition("/")
    if not slash or not model:
        raise BadLinkError(f"{side} {text[:80]!r}: must be NODE/MODEL, such as studio/chat")
    return node_id(node), model_id(model)
