# ruff: noqa: INP001  (a script beside what it makes, not a package)
"""Makes asyncapi.yaml and schemas/events.json from the structs of `domain/events`: `python docs/reference/asyncapi.py [--check]`.

Channels are said here, since a subject is made by code (`domain/subjects.py`); a test makes the subject of every event and asks
for the one channel that it stands in.
"""

import ast
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec
import yaml

from domain.events import (  # the project's root has to be on the path first
    BorrowFact,
    ControlEvent,
    Decision,
    Envelope,
    LendFact,
    ModelFact,
    NativeWaited,
    Observation,
    OwnerPlanned,
    QueueFact,
    StatusFact,
    decision,
)
from domain.events.base import EventBody, tag_of

PAGE: Final = Path(__file__).with_suffix(".yaml")
BUNDLE: Final = Path(__file__).parent / "schemas" / "events.json"
REF: Final = "#/definitions/"
ABOUT: Final = """\
Every event of a Leaseway cluster: what nodes state, what operators decide, what the master derives from both. Outside tools read
them with credentials of `leaseway subscribe` (docs/how-to/subscribe.md), from JetStream streams of these names, or as they are
stored by an ordinary subscription. Each message is one CloudEvents object in JSON. Fields are only ever added: ignore those that
you do not know, and events that you do not know. Durations end in `_us` and are microseconds.
Made by docs/reference/asyncapi.py.
"""
PARAMETERS: Final = {
    "cluster": "Name of the cluster; `local` unless it is configured.",
    "node": "Id of a node: `[a-z0-9][a-z0-9-]{0,30}`.",
    "owner": "Node that received the requests.",
    "helper": "Node that a link allows to take them.",
    "model": "Token of a model: the first 16 hex digits of blake2b-8 of its id in UTF-8. The id itself is in the event.",
    "link": "Id of a link: the same hash of owner, owner model, helper, helper model, joined by U+001F.",
    "place": "Id of a link; in native_waited, which no link has caused, the token of the model.",
    "term": "Number of the master's term of office.",
    "kind": "links, nodes or settings.",
    "id": "Id of a link or node, or `cluster`.",
    "event": "The second word of the event's type.",
    "state": "The state that the event states.",
}


def _union(kind: object) -> tuple[type[EventBody], ...]:
    return get_args(kind)


_MASTER: Final = "the master, as its decision"
_LEASES: Final = (
    decision.LeaseGranted,
    decision.LeaseChanged,
    decision.LeaseCleared,
    decision.LinkPriced,
    decision.LeaseChecked,
    decision.LeaseStalled,
)
CHANNELS: Final[dict[str, tuple[str, str, str, tuple[type[EventBody], ...]]]] = {
    "queue": (
        "node.{node}.queue.{model}.{event}",
        "LW_EVENTS",
        "the node, of one of its models' queues",
        _union(QueueFact),
    ),
    "lend": ("node.{node}.lend.{link}.{event}", "LW_EVENTS", "the owner, of what it lends", _union(LendFact)),
    "borrow": ("node.{node}.borrow.{place}.{event}", "LW_EVENTS", "the helper, of what it borrows", _union(BorrowFact)),
    "model": (
        "node.{node}.model.{model}.{event}",
        "LW_EVENTS",
        "the node, of what its engines load",
        _union(ModelFact),
    ),
    "status": ("node.{node}.status.{event}", "LW_EVENTS", "the node, of itself", _union(StatusFact)),
    "observation": ("obs.{term}.{event}", "LW_EVENTS", "the active master: what it saw", _union(Observation)),
    "control": ("control.{kind}.{id}", "LW_CONTROL", "an operator's command", _union(ControlEvent)),
    "lease": ("lease.{owner}.{helper}.{link}.{event}", "LW_DECISIONS", _MASTER, _LEASES),
    "health": ("health.{node}.{state}", "LW_DECISIONS", _MASTER, (decision.NodeHealthChanged,)),
    "breaker": ("breaker.{helper}.{state}", "LW_DECISIONS", _MASTER, (decision.BreakerChanged,)),
    "request": (
        "request.{node}.{event}",
        "LW_DECISIONS",
        _MASTER,
        (decision.RequestPresumedLost, decision.RequestOrphaned),
    ),
    "safe_mode": ("safe_mode.{event}", "LW_DECISIONS", _MASTER, (decision.SafeModeEntered, decision.SafeModeLeft)),
}
"""Name -> (address after `lw.{cluster}.`, stream, who says it, events)."""
UNPUBLISHED: Final = frozenset({OwnerPlanned})
"""They stand in commits alone."""


def main() -> int:
    """Write or check both files; return the exit code."""
    made = {PAGE: as_yaml(document()), BUNDLE: json.dumps(bundle(), indent=1) + "\n"}
    if "--check" in sys.argv[1:]:
        stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
        for path in stale:
            sys.stderr.write(
                f"docs/reference/{path.name} is not current; run: .venv/bin/python docs/reference/asyncapi.py\n"
            )
        return int(bool(stale))
    for path, text in made.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


def published() -> list[type[EventBody]]:
    """Return every event that is published, in order of channel."""
    return [event for *_, events in CHANNELS.values() for event in events]


def document() -> dict[str, Any]:
    """Return the AsyncAPI document."""
    messages = {tag_of(event): _message(event) for event in published()}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Leaseway events",
            "version": "1.0.0",
            "description": ABOUT,
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "bus": {
                "host": "127.0.0.1:4222",
                "protocol": "nats",
                "description": "nats-server; account OBS, one nkey a tool. `leaseway subscribe --add NAME` says the rest.",
            }
        },
        "channels": {name: _channel(name) for name in CHANNELS},
        "operations": {f"say_{name}": _operation(name) for name in CHANNELS},
        "components": {"messages": messages, "schemas": _schemas("#/components/schemas/")},
    }


def bundle() -> dict[str, Any]:
    """Return the JSON Schemas of all events as one document: what it validates is any event, whole."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "An event of a Leaseway cluster",
        "oneOf": [{"$ref": f"{REF}{tag_of(event)}"} for event in published()],
        "definitions": _schemas(REF) | {tag_of(event): _whole(event, REF) for event in published()},
    }


def _channel(name: str) -> dict[str, Any]:
    address, stream, said_by, events = CHANNELS[name]
    whole = f"lw.{{cluster}}.{address}"
    return {
        "address": whole,
        "title": name,
        "description": f"Said by {said_by}. Stored in {stream}.",
        "servers": [{"$ref": "#/servers/bus"}],
        "parameters": {each: {"description": PARAMETERS[each]} for each in _parameters(whole)},
        "messages": {_key(event): {"$ref": f"#/components/messages/{tag_of(event)}"} for event in events},
    }


def _operation(name: str) -> dict[str, Any]:
    said_by, events = CHANNELS[name][2:]
    return {
        "action": "send",
        "channel": {"$ref": f"#/channels/{name}"},
        "summary": f"Said by {said_by}.",
        "messages": [{"$ref": f"#/channels/{name}/messages/{_key(event)}"} for event in events],
    }


def _message(event: type[EventBody]) -> dict[str, Any]:
    return {
        "name": tag_of(event),
        "title": event.__name__,
        "summary": _first_line(event),
        "contentType": "application/cloudevents+json",
        "payload": _whole(event, "#/components/schemas/"),
    }


def _whole(event: type[EventBody], ref: str) -> dict[str, Any]:
    """Return the schema of one event with its envelope."""
    said = {"type": {"const": tag_of(event)}, "data": {"$ref": f"{ref}{event.__name__}"}}
    return {"allOf": [{"$ref": f"{ref}Envelope"}, {"type": "object", "properties": said}]}


def _schemas(ref: str) -> dict[str, Any]:
    """Return the schema of every struct that an event is made of."""
    _, found = msgspec.json.schema_components([*published(), Envelope], ref_template=ref + "{name}")
    tag = {
        "type": "string",
        "description": "Authentication tag over all bytes before its comma: HMAC-SHA256 or ed25519.",
    }
    found["Envelope"]["properties"] |= {"mac": tag, "sig": tag}
    structs = {struct.__name__: struct for struct in _structs()}
    for name, schema in found.items():
        schema["description"] = _first_line(structs[name])
        for field, about in _said_of_fields(structs[name]).items():
            if field in schema.get("properties", {}):
                schema["properties"][field] = _described(schema["properties"][field], about)
    return {name: _draft_7(found[name]) for name in sorted(found)}


def _described(schema: dict[str, Any], about: str) -> dict[str, Any]:
    # beside a $ref nothing else counts
    return {"allOf": [schema], "description": about} if "$ref" in schema else schema | {"description": about}


def _draft_7(schema: Any) -> Any:
    """Return a schema in the words of draft 7, which AsyncAPI is made on: tuples were `items` then."""
    if isinstance(schema, list):
        return [_draft_7(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        ("items" if key == "prefixItems" else key): _draft_7(value)
        for key, value in schema.items()
        if key != "maxItems"
    }


def _structs() -> Iterator[type[msgspec.Struct]]:
    """Yield every struct that events are made of."""
    waiting: list[Any] = [Envelope, *published()]
    seen: set[Any] = set()
    while waiting:
        kind = waiting.pop()
        waiting += get_args(kind)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in seen:
            seen.add(kind)
            waiting += [field.type for field in msgspec.structs.fields(kind)]
            yield kind


def _said_of_fields(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return field -> what the text right below it in the source says."""
    said: dict[str, str] = {}
    for owner in reversed(struct.__mro__):
        if owner is struct or (issubclass(owner, msgspec.Struct) and owner.__module__.startswith("domain.")):
            body = ast.parse(inspect.getsource(owner)).body[0]
            assert isinstance(body, ast.ClassDef)
            for field, text in zip(body.body, body.body[1:], strict=False):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and isinstance(text, ast.Expr)
                ):
                    said[field.target.id] = str(ast.literal_eval(text.value))
    return said


def _first_line(struct: type) -> str:
    return (inspect.getdoc(struct) or "").split("\n\n")[0].replace("\n", " ")


def _parameters(address: str) -> list[str]:
    return [token.strip("{}") for token in address.split(".") if token.startswith("{")]


def _key(event: type[EventBody]) -> str:
    return tag_of(event).replace(".", "_")


def as_yaml(value: dict[str, Any]) -> str:
    """Return `value` as YAML without anchors, in the order in which it was made."""

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            del data
            return True

    def text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)

    Plain.add_representer(str, text)
    return str(yaml.dump(value, Dumper=Plain, sort_keys=False, allow_unicode=True, width=120))


assert {*published(), *UNPUBLISHED} >= {*get_args(Decision)}, "every decision is in a channel, or is not published"
assert NativeWaited in CHANNELS["borrow"][3]

if __name__ == "__main__":
    sys.exit(main())
