"""How large what a node says may be: longer ids, negative counts or absurd numbers are refused before any rule reads them.

A node that was taken over may sign what it likes. With these bounds no fact can make a commit outgrow its message, a price
outgrow 64 bits, or a table of the master outgrow what the fold allows each node.
"""

from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Protocol, Union, cast, get_args, get_origin

import msgspec
from msgspec import Meta

from domain.events import Envelope, Input
from domain.events.base import EventBody
from domain.ids import Generation, Incarnation, LeaseId, LinkId, ModelId, NodeId, RequestId

NUMBER_MAX: Final = 10**15
"""Largest count or duration: 31 years in microseconds."""
MOMENT_MAX: Final = 10**16
"""Latest moment: the year 2286 in microseconds since the epoch."""
WORK_MAX: Final = 10**18
"""Largest work; from 10**15 on the fold calls it all the same (domain.master.fold)."""
DEPTH_MAX: Final = 1024
PSEQ_DIGITS_MAX: Final = 15
INCARNATION_CHARS_MAX: Final = 64
NESTING_MAX: Final = 64
"""How deep lists and objects of a message may stand in each other, whether a rule reads them or not; ours stand 6 deep.

The decoder's own limit is what the interpreter's stack has left where it is called: two readers of the same bytes would differ.
"""

_TEXTS: Final[dict[object, int]] = {
    RequestId: 64, ModelId: 256, LinkId: 64, LeaseId: 64, Generation: 16, Incarnation: INCARNATION_CHARS_MAX, str: 1024,
}  # fmt: skip
_NODE: Final = Meta(max_length=31, pattern=r"^[a-z0-9][a-z0-9-]*\Z")
_FIELDS: Final[dict[str, object]] = {
    "url": Annotated[str, Meta(max_length=512, pattern=r"^[!-~]*\Z")],
    "helper": Annotated[str, Meta(max_length=31, pattern=r"^[a-z0-9-]*\Z")],
    "at_us": Annotated[int, Meta(ge=0, le=MOMENT_MAX)],
    "work": Annotated[int, Meta(ge=0, le=WORK_MAX)],
    "depth": Annotated[int, Meta(ge=0, le=DEPTH_MAX)],
    "slots": Annotated[int, Meta(ge=0, le=DEPTH_MAX)],
    "part": Annotated[int, Meta(ge=1, le=10_000)],
    "parts": Annotated[int, Meta(ge=1, le=10_000)],
}
_ITEMS_MAX: Final = 2000
"""Items of any list; a message of the stream holds at most 128 KiB."""
_MODELS_MAX: Final = 256


def _bounded(name: str, kind: Any) -> Any:
    """Return the type of a field with its bounds."""
    if name in _FIELDS:
        return _FIELDS[name]
    if kind is NodeId:
        return Annotated[str, _NODE]
    if kind in _TEXTS:
        return Annotated[str, Meta(max_length=_TEXTS[kind])]
    if kind is int:
        return Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _twin(kind)
    return _bounded_inside(name, kind)


def _bounded_inside(name: str, kind: Any) -> Any:
    """Return a type made of others, each with its bounds."""
    inner = tuple(_bounded("", each) for each in get_args(kind) if each is not Ellipsis)
    if get_origin(kind) in {Union, UnionType}:
        return Union[inner]  # noqa: UP007  # built at run time
    if get_origin(kind) is tuple:
        most = Meta(max_length=_MODELS_MAX if name == "models" else _ITEMS_MAX)
        return Annotated[tuple[inner[0], ...], most]  # type: ignore[valid-type]
    if get_origin(kind) is dict:
        return Annotated[dict[inner], Meta(max_length=_ITEMS_MAX)]  # type: ignore[misc,valid-type]
    assert kind in {bool, NoneType}, f"{name}: no bounds for {kind}"
    return kind


@cache
def _twin(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return a struct of the same form whose fields are bounded."""
    fields: list[Any] = [
        (field.name, _bounded(field.name, field.type))
        if field.required
        else (field.name, _bounded(field.name, field.type), field.default)
        for field in msgspec.structs.fields(kind)
    ]
    tags: Any = {"tag_field": "event", "tag": kind.__struct_config__.tag} if issubclass(kind, EventBody) else {}
    return msgspec.defstruct(f"Bounded{kind.__name__}", fields, kw_only=True, **tags)


_DECODER: Final = msgspec.json.Decoder(Union[tuple(_twin(each) for each in get_args(Input))])  # noqa: UP007


# ---- all at once -----------------------------------------------------------------------------------------------------


def _is_flat(kind: type[EventBody]) -> bool:
    """Tell whether an event is made of texts and numbers alone."""
    return all(_is_plain(field.type) for field in msgspec.structs.fields(kind))


def _is_plain(kind: Any) -> bool:
    if get_origin(kind) in {Union, UnionType}:
        return all(_is_plain(each) for each in get_args(kind))
    return not get_args(kind) and not (isinstance(kind, type) and issubclass(kind, msgspec.Struct))


def _narrowed(kind: type[EventBody]) -> type[EventBody]:
    """Return an event's own subclass whose fields are bounded: what it decodes is the event, and keeps to the bounds."""
    fields: list[Any] = [
        (field.name, _bounded(field.name, field.type))
        if field.required
        else (field.name, _bounded(field.name, field.type), field.default)
        for field in msgspec.structs.fields(kind)
    ]
    tag = kind.__struct_config__.tag
    config: Any = {"bases": (kind,), "module": __name__, "frozen": True, "kw_only": True, "gc": False}
    tag = kind.__struct_config__.tag
    return cast("type[EventBody]", msgspec.defstruct(kind.__name__, fields, tag_field="event", tag=tag, **config))


NARROWED: Final[dict[type[EventBody], type[EventBody]]] = {
    kind: _narrowed(kind) for kind in get_args(Input) if _is_flat(kind)
}
"""By event its bounded subclass: of every event without a struct or a list inside, which is nearly all that is ever said."""


def _spoken() -> type[msgspec.Struct]:
    """Return the envelope with a bounded event as its data, decoded with it."""
    kinds: dict[str, Any] = {
        "data": Union[tuple(NARROWED.values())],  # noqa: UP007  # built at run time
        "incarnation": Annotated[str, Meta(min_length=1, max_length=INCARNATION_CHARS_MAX)],
        "pseq": Annotated[str, Meta(min_length=1, max_length=PSEQ_DIGITS_MAX)],
    }
    fields: list[Any] = [
        (field.name, kinds.get(field.name, field.type))
        if field.required
        else (field.name, kinds.get(field.name, field.type), field.default)
        for field in msgspec.structs.fields(Envelope)
    ]
    return msgspec.defstruct("Spoken", fields, frozen=True, kw_only=True, gc=False)


_SPOKEN: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(_spoken())


class Spoken(Protocol):
    """An envelope as it comes out of `spoken`."""

    cluster: str
    producer: str
    type: str
    incarnation: Incarnation
    pseq: str
    late: bool
    data: Input


def spoken(body: bytes) -> Spoken | None:
    """Return the envelope in a stored body with the event in it, if this one is flat and keeps to the bounds.

    None says nothing but that it has to be looked at piece by piece. What comes out is what that would give: the decoder reads
    the same fields by the same types, and it refuses all that one of the pieces refuses.
    """
    try:
        return cast("Spoken", _SPOKEN.decode(body))
    except (msgspec.DecodeError, RecursionError):
        return None


_OTHERS: Final = bytes(set(range(256)) - set(b"[]{}"))


def is_too_deep(body: bytes) -> bool:
    """Tell whether lists and objects stand more than NESTING_MAX deep in each other, as far as a decoder would get."""
    if body.count(b"{") + body.count(b"[") <= NESTING_MAX:  # as in nearly every message
        return False
    outside = body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]  # what stands in no text
    deep = deepest = 0
    for bracket in b"".join(outside).translate(None, _OTHERS):
        deep += 1 if bracket in b"[{" else -1
        deepest = max(deepest, deep)
    return deepest > NESTING_MAX


def within(data: msgspec.Raw | bytes) -> bool:
    """Tell whether an event that decodes also keeps to the bounds."""
    try:
        _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
