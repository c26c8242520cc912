"""What all event bodies share."""

import msgspec


class EventBody(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="event", omit_defaults=False):
    """The `data` of one event. The tag is `<family>.<event>`, as in its subject; it is also the envelope's `type`."""


def tag_of(body: type[EventBody] | EventBody) -> str:
    """Return the tag of an event body or of its class, `<family>.<event>`."""
    tag = body.__struct_config__.tag
    if not isinstance(tag, str):
        raise TypeError(f"{body}: an event body needs a tag of text")
    return tag
