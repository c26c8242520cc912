"""The published description of the events: a sound AsyncAPI document, true of every event and every stored history."""

import gzip
import importlib.util
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, get_args, get_origin

import jsonschema
import msgspec
import pytest
import yaml

from domain.events import ControlEvent, Decision, Envelope, Fact, Observation, OwnerPlanned, codec
from domain.events.base import EventBody, tag_of
from domain.events.commit import decode_commit
from domain.ids import NodeId
from domain.ports import StoredMessage
from domain.subjects import control_aggregate, control_subject, decision_subject, fact_subject, observation_subject
from projections.feed import public_event
from tests.support.facts import granted, held, lent
from tests.support.public import Public

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "asyncapi.yaml"
BUNDLE = ROOT / "docs" / "reference" / "schemas" / "events.json"
SCHEMA = ROOT / "tests" / "support" / "schemas" / "asyncapi-3.0.0.json"
GOLDEN = sorted((ROOT / "tests" / "replay" / "golden").rglob("*.gz"))
EVENTS = [
    event
    for union in (Fact, Observation, ControlEvent, Decision)
    for event in get_args(union)
    if event is not OwnerPlanned
]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return dict(yaml.load(PAGE.read_text(), Loader=yaml.CSafeLoader))


@pytest.fixture(scope="module")
def validators() -> dict[str, jsonschema.Draft7Validator]:
    """Return event type -> validator of the whole event."""
    bundle = json.loads(BUNDLE.read_text())
    return {
        event["$ref"].rpartition("/")[2]: jsonschema.Draft7Validator({**event, "definitions": bundle["definitions"]})
        for event in bundle["oneOf"]
    }


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """Return docs/reference/asyncapi.py as a module."""
    spec = importlib.util.spec_from_file_location("asyncapi_page", ROOT / "docs" / "reference" / "asyncapi.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_files_are_what_the_structs_make(generator: ModuleType, document: dict[str, Any]) -> None:
    told = "run .venv/bin/python docs/reference/asyncapi.py"
    assert document == json.loads(json.dumps(generator.document())), told
    assert json.loads(BUNDLE.read_text()) == json.loads(json.dumps(generator.bundle())), told


def test_the_document_is_sound_by_the_public_schema_of_asyncapi(document: dict[str, Any]) -> None:
    schema = json.loads(SCHEMA.read_text())
    assert [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(document)] == []
    assert not jsonschema.Draft7Validator(schema).is_valid({**document, "info": {"version": "1"}})


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    for root in (document, json.loads(BUNDLE.read_text())):
        for reference in references(root):
            place = root
            for step in reference.removeprefix("#/").split("/"):
                place = place[step]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from references(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            if key == "$ref" and isinstance(each, str):
                yield each
            else:
                yield from references(each)


# ---- every event, both ways ------------------------------------------------------------------------------------------


def made(kind: Any) -> Any:
    """Return a small value of a type, as JSON has it."""
    origin, inner = get_origin(kind), [each for each in get_args(kind) if each is not type(None)]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = {field.encode_name: made(field.type) for field in msgspec.structs.fields(kind)}
        config = kind.__struct_config__
        if config.array_like:
            return list(fields.values())
        return fields | ({config.tag_field: config.tag} if config.tag_field else {})
    if origin is UnionType or (origin is not None and not isinstance(origin, type)):
        return made(inner[0])
    if origin is tuple:
        return [made(inner[0])] if inner[1:] == [...] else [made(each) for each in inner]
    if origin in {list, frozenset}:
        return [made(inner[0])]
    if origin is dict:
        return {made(inner[0]): made(inner[1])}
    while hasattr(kind, "__supertype__"):
        kind = kind.__supertype__
    return {str: "n1", int: 1, bool: True, float: 1.5}[kind]


def event_of(kind: type[EventBody]) -> EventBody:
    return msgspec.convert(made(kind), kind)


def subject_of(event: Any) -> str:
    if isinstance(event, get_args(Observation)):
        return observation_subject("local", 1, event)
    if isinstance(event, get_args(Fact)):
        return fact_subject("local", NodeId("n1"), event)
    if isinstance(event, get_args(ControlEvent)):
        return control_subject("local", control_aggregate(event))
    return decision_subject("local", event)


def matching(document: dict[str, Any], subject: str) -> list[str]:
    """Return the names of the channels whose address `subject` has."""
    found = []
    for name, channel in document["channels"].items():
        pattern = re.sub(r"\\\{[a-z]+\\\}", "[^.]+", re.escape(channel["address"]))
        if re.fullmatch(pattern, subject):
            found.append(name)
    return found


@pytest.mark.parametrize("kind", EVENTS, ids=tag_of)
def test_an_event_stands_in_the_one_channel_of_its_subject_and_fits_its_schema(
    kind: type[EventBody], document: dict[str, Any], validators: dict[str, jsonschema.Draft7Validator]
) -> None:
    event = event_of(kind)
    [name] = matching(document, subject_of(event))
    listed = {message["$ref"].rpartition("/")[2] for message in document["channels"][name]["messages"].values()}
    assert tag_of(kind) in listed
    envelope = Envelope(
        id="i", source="/local/master", type=tag_of(kind), cluster="local", producer="n1", data=codec.raw(event)
    )
    said = json.loads(codec.encode(envelope))
    validators[tag_of(kind)].validate(said)
    for field in json.loads(BUNDLE.read_text())["definitions"][kind.__name__]["required"]:
        lacking = {**said, "data": {name: value for name, value in said["data"].items() if name != field}}
        assert not validators[tag_of(kind)].is_valid(lacking), field


def test_no_channel_has_an_event_that_does_not_exist(document: dict[str, Any]) -> None:
    listed = [
        message["$ref"].rpartition("/")[2]
        for channel in document["channels"].values()
        for message in channel["messages"].values()
    ]
    assert sorted(listed) == sorted(tag_of(event) for event in EVENTS)
    assert sorted(document["components"]["messages"]) == sorted(listed)


def test_every_parameter_of_an_address_is_described(document: dict[str, Any]) -> None:
    for channel in document["channels"].values():
        assert set(re.findall(r"\{([a-z]+)\}", channel["address"])) == set(channel["parameters"])


# ---- real histories --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", GOLDEN[:: max(1, len(GOLDEN) // 6)], ids=lambda path: path.stem)
def test_the_events_of_a_stored_history_fit(
    path: Path, document: dict[str, Any], validators: dict[str, jsonschema.Draft7Validator]
) -> None:
    seen: dict[str, int] = {}
    for line in gzip.decompress(path.read_bytes()).splitlines():
        kind, _, subject, body = msgspec.json.decode(line)
        whole = list(published(body)) if kind == "l" else list(of_ours(subject, body))
        for event in whole:
            seen[event["type"]] = seen.get(event["type"], 0) + 1
            if seen[event["type"]] <= 20:  # of a kind they differ in numbers alone
                validators[event["type"]].validate(event)
        if kind != "l" and whole:
            [channel] = matching(document, subject)
            assert whole[0]["type"].replace(".", "_") in document["channels"][channel]["messages"]
    assert len(seen) > 3


def of_ours(subject: str, body: str) -> Iterator[dict[str, Any]]:
    """Yield the event in a stored body, unless it is something odd that no rule reads (some histories have such)."""
    event = public_event(StoredMessage(1, 1, subject, b"", body.encode()))
    with suppress(msgspec.DecodeError):
        if event is not None:
            codec.decode_event(codec.decode_envelope(event.body).data)
            yield json.loads(event.body)


def published(body: str) -> Iterator[dict[str, Any]]:
    """Yield the decisions of a commit as the feed has them."""
    for decision in decode_commit(body.encode()).decisions:
        if not isinstance(decision, OwnerPlanned):
            envelope = Envelope(
                id="i",
                source="/c/master",
                type=tag_of(decision),
                cluster="c",
                producer="master",
                data=codec.raw(decision),
            )
            yield json.loads(codec.encode(envelope))


async def test_what_is_stored_with_its_authentication_tag_fits(
    validators: dict[str, jsonschema.Draft7Validator],
) -> None:
    public = Public()
    await public.link()
    await public.tell(held(1), lent(1))
    await public.decide(granted())
    for stream in public.streams.values():
        last = await stream.last()
        assert last is not None
        event = json.loads(last.body)
        validators[event["type"]].validate(event)
        assert not validators[event["type"]].is_valid(event | {"type": "lease.cleared"})


def test_the_page_says_something_of_most_fields() -> None:
    lease = json.loads(BUNDLE.read_text())["definitions"]["LeaseGranted"]["properties"]
    assert lease["slots"]["description"].startswith("Requests of this owner that may be at this helper")
