"""What a configuration must fulfil beyond its types: ranges, forms, and the token of a cluster."""

import ipaddress
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

import msgspec

from adapters.clickhouse.store import broken_rule
from adapters.http.hosts import is_address
from adapters.http.webhook import KEY_BYTES_MAX, KEY_BYTES_MIN, PREFIX, key_of
from domain.control.settings import parse_values
from domain.errors import BadConfigError, BadIdError, BadSettingError
from domain.ids import model_id, node_id
from projections.feed import is_pattern
from services.config import Config, Limits, NodeConfig, NodeModel, WebhookConfig

TOKEN_CHARS_MIN: Final = 32
LANES: Final = ("text", "embedding", "rerank", "image", "video", "speech", "transcription", "music")
ENGINES: Final = ("llama.cpp", "openai")
DURABILITIES: Final = ("strict", "relaxed")
_ALLOWED_HOST: Final = re.compile(r"\*|\.?[A-Za-z0-9_]([A-Za-z0-9._-]{0,252})")
_SECRET_PARTS: Final = re.compile(r"(?<=//)[^/]*(?=@)|(?<=[?#]).*")
_CLICKHOUSE_CLUSTER: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PLACEHOLDERS: Final = (
    "changeme",
    "change-me",
    "change_me",
    "placeholder",
    "example",
    "replace",
    "secret",
    "xxxx",
    "your-",
)


class Problem(NamedTuple):
    """One broken rule: the dotted key, the rule, and the value that breaks it."""

    key: str
    rule: str
    value: object


def problems(config: Config) -> Iterator[Problem]:
    """Yield every rule that `config` breaks, in the order of its tables."""
    yield from _id("cluster.name", config.cluster.name)
    yield from _settings(config)
    yield from _bus(config)
    yield from _http(config)
    if config.node.id or config.node.models:
        yield from _node("node", config.node)
    for at, node in enumerate(config.nodes):
        yield from _node(f"nodes[{at}]", node)
    yield from _distinct("nodes", [node.id for node in config.nodes] + ([config.node.id] if config.node.id else []))
    if config.clickhouse.dsn and (rule := broken_rule(config.clickhouse.dsn)):
        yield Problem("clickhouse.dsn", rule, config.clickhouse.dsn)
    if config.clickhouse.cluster and not _CLICKHOUSE_CLUSTER.fullmatch(config.clickhouse.cluster):
        rule = "must be 1 to 64 letters, digits, - and _"
        yield Problem("clickhouse.cluster", rule, config.clickhouse.cluster)
    if config.telemetry.otlp_url:
        yield from _url("telemetry.otlp_url", config.telemetry.otlp_url, ("http", "https"))
    for name in ("master", "projector", "gateway", "console"):
        stated = getattr(config.urls, name)
        for url in stated.split(",") if stated else ():
            yield from _url(f"urls.{name}", url.strip(), ("http", "https"))
    for at, hook in enumerate(config.webhooks):
        yield from _webhook(f"webhooks[{at}]", hook)
    yield from _distinct("webhooks", [hook.name for hook in config.webhooks], "name")
    yield from _token(config)


def is_loopback(host: str) -> bool:
    """Tell whether `host` reaches this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_cluster(config: Config) -> bool:
    """Tell whether this process speaks with other machines: it listens beyond loopback, or its bus is elsewhere."""
    return not is_loopback(config.http.host) or not all(map(_leads_to_loopback, config.bus.url.split(",")))


def _leads_to_loopback(url: str) -> bool:
    parts = _split(url.strip())
    return parts is not None and is_loopback(parts.hostname or "")


def is_wildcard(host: str) -> bool:
    """Tell whether `host` stands for every address of a machine: one listens at it, and nobody can be sent there."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def is_local(url: str) -> bool:
    """Tell whether only its own machine finds what is at `url`."""
    parts = _split(url)
    host = (parts.hostname or "") if parts is not None else ""
    return is_loopback(host) or is_wildcard(host)


def unreachable(config: Config) -> Iterator[Problem]:
    """Yield a problem if a node of this configuration would give others a URL at which they cannot find it."""
    http = config.http
    parts = _split(http.public_url)
    host = parts.hostname or http.host if parts is not None else http.host
    elsewhere = not all(is_local(url.strip()) for url in config.bus.url.split(","))
    if is_wildcard(host) or (elsewhere and is_loopback(host)):
        rule = (
            f"must be a URL at which others find a node that listens at {http.host} and whose bus is {config.bus.url}"
        )
        yield Problem("http.public_url", rule, http.public_url)


def missing_programs(node: NodeConfig) -> Iterator[Problem]:
    """Yield the engine commands of `node` whose program is not on this machine."""
    for at, model in enumerate(node.models):
        if model.command and shutil.which(model.command[0]) is None:
            key = f"node {node.id}: models[{at}].command"
            yield Problem(key, "must start with a program that is on this machine", model.command[0])


def _range(key: str, value: int, low: int, high: int) -> Iterator[Problem]:
    if not low <= value <= high:
        yield Problem(key, f"must be {low} to {high}", value)


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> Iterator[Problem]:
    if value not in allowed:
        yield Problem(key, f"must be one of {', '.join(allowed)}", value)


def _distinct(key: str, names: list[str], field: str = "id") -> Iterator[Problem]:
    for name in sorted(set(names)):
        if names.count(name) > 1:
            yield Problem(f"{key}.{field}", "must be stated once only", name)


def _id(key: str, value: str, check: Callable[[str], str] = node_id) -> Iterator[Problem]:
    try:
        check(value)
    except BadIdError as error:
        yield Problem(key, error.rule, value)


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises on a port that is no number or too large
    except ValueError:
        return None
    return parts


def _url(key: str, value: str, schemes: tuple[str, ...]) -> Iterator[Problem]:
    parts = _split(value)
    if parts is None or parts.scheme not in schemes or not parts.hostname or "@" in parts.netloc or _ends_oddly(value):
        shape = " or ".join(f"{scheme}://host:port" for scheme in schemes)
        yield Problem(key, f"must be {shape}, without user, password, query or fragment", _bared(value))


def _bared(url: str) -> str:
    """Return a URL that is refused without what may be secret in it: user and password, and a query."""
    return _SECRET_PARTS.sub("(not shown)", url)


def _ends_oddly(url: str) -> bool:
    """Tell whether a path that is put behind `url` would not be one."""
    return "?" in url or "#" in url


def _token(config: Config) -> Iterator[Problem]:
    token = config.cluster.token
    if not token and not is_cluster(config):
        return
    if len(token) < TOKEN_CHARS_MIN:
        yield Problem("cluster.token", f"must have at least {TOKEN_CHARS_MIN} characters", token)
    elif any(word in token.lower() for word in _PLACEHOLDERS) or len(set(token)) < 8:
        yield Problem("cluster.token", "must be a secret of your own, not a placeholder", token)


def _settings(config: Config) -> Iterator[Problem]:
    for name, value in sorted(config.cluster.settings.items()):
        try:
            parse_values({name: value})
        except BadSettingError as error:
            rule = str(error).partition(": ")[2].partition(", got")[0]
            yield Problem(f"cluster.settings.{name}", rule, value)


def _bus(config: Config) -> Iterator[Problem]:
    for url in config.bus.url.split(","):
        yield from _url("bus.url", url.strip(), ("nats", "tls"))
    yield from _one_of("bus.durability", config.bus.durability, DURABILITIES)


def _http(config: Config) -> Iterator[Problem]:
    if not config.http.host or "/" in config.http.host:
        yield Problem("http.host", "must be a host name or address", config.http.host)
    yield from _range("http.port", config.http.port, 0, 65535)
    if config.http.public_url:
        yield from _url("http.public_url", config.http.public_url, ("http", "https"))
    for name in config.http.allowed_hosts.split(",") if config.http.allowed_hosts else ():
        if not _ALLOWED_HOST.fullmatch(name.strip()) and not is_address(name.strip()):
            rule = "must be names with commas between, without port, such as ai.example.org or .lan, or * for any"
            yield Problem("http.allowed_hosts", rule, name.strip())
    for field in msgspec.structs.fields(Limits):
        yield from _range(f"http.limits.{field.name}", getattr(config.http.limits, field.name), 1, 1 << 40)


def _node(key: str, node: NodeConfig) -> Iterator[Problem]:
    yield from _id(f"{key}.id", node.id)
    yield from _range(f"{key}.depth", node.depth, 1, 64)
    for at, model in enumerate(node.models):
        yield from _model(f"{key}.models[{at}]", model)
    yield from _distinct(f"{key}.models", [model.id for model in node.models])
    for name in sorted({model.runtime for model in node.models if model.runtime}):
        yield from _runtime(f"{key}.models", [model for model in node.models if model.runtime == name])
    yield from _ports(key, node)
    for at, relay in enumerate(node.relays):
        yield from _url(f"{key}.relays[{at}]", relay, ("http", "https"))


def _ports(key: str, node: NodeConfig) -> Iterator[Problem]:
    """Yield the ports at which two engines would listen at once: each would be taken for the other."""
    at_once: dict[int, set[str]] = {}
    for model in node.models:
        if model.command and model.port:
            runtime = model.runtime and f"runtime {model.runtime}"
            at_once.setdefault(model.port, set()).add(runtime or f"model {model.id}")
    for port, engines in sorted(at_once.items()):
        if len(engines) > 1:
            rule = f"must be of one engine at a time, is stated for {' and '.join(sorted(engines))}"
            yield Problem(f"{key}.models.port", rule, port)


def _model(key: str, model: NodeModel) -> Iterator[Problem]:
    yield from _id(f"{key}.id", model.id, model_id)
    yield from _one_of(f"{key}.lane", model.lane, LANES)
    yield from _one_of(f"{key}.engine", model.engine, ENGINES)
    if not model.url and not model.command:
        yield Problem(f"{key}.url", "must be stated, or `command`, which starts the engine", model.url)
    if model.url:
        yield from _url(f"{key}.url", model.url, ("http", "https"))
    if model.runtime:
        yield from _id(f"{key}.runtime", model.runtime)
    elif model.startup:
        yield Problem(f"{key}.startup", "needs `runtime`: an engine of its own is always loaded", model.startup)
    yield from _orders(key, model)
    yield from _range(f"{key}.port", model.port, 0, 65535)
    yield from _range(f"{key}.slots", model.slots, 1, 4096)
    yield from _range(f"{key}.load_timeout_s", model.load_timeout_s, 1, 86_400)
    yield from _range(f"{key}.context", model.context, 0, 1 << 30)


def _orders(key: str, model: NodeModel) -> Iterator[Problem]:
    """Yield what is wrong with how the engine is told to load and unload."""
    for name in ("load", "unload"):
        url, body = getattr(model, f"{name}_url"), getattr(model, f"{name}_body")
        if url:
            yield from _url(f"{key}.{name}_url", url, ("http", "https"))
            if not model.runtime:
                yield Problem(f"{key}.{name}_url", "needs `runtime`: an engine of its own is always loaded", url)
            if model.command:
                yield Problem(f"{key}.{name}_url", "must not stand beside `command`, which loads by starting", url)
        if body and not url:
            yield Problem(f"{key}.{name}_body", f"needs `{name}_url`", body)
        if body and not _is_json(body):
            yield Problem(f"{key}.{name}_body", "must be JSON", body)


def _runtime(key: str, models: list[NodeModel]) -> Iterator[Problem]:
    """Yield what is wrong with the models of one runtime taken together: there is room for one of them."""
    name = models[0].runtime
    first = [model.id for model in models if model.startup]
    if len(first) > 1:
        rule = f"must be stated by at most one model of runtime {name!r}"
        yield Problem(f"{key}.startup", rule, ", ".join(first))
    places = {model.url or f"command of {model.id}" for model in models}
    for model in models:
        if len(places) > 1 and not model.command and not model.unload_url:
            rule = f"must be stated: runtime {name!r} has engines elsewhere too, and this one would keep its memory"
            yield Problem(f"{key}: {model.id}: unload_url", rule, model.unload_url)


def _webhook(key: str, hook: WebhookConfig) -> Iterator[Problem]:
    """Yield what is wrong with a webhook; its secret is in no problem."""
    yield from _id(f"{key}.name", hook.name)
    parts = _split(hook.url)
    if parts is None or parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        yield Problem(f"{key}.url", "must be http://... or https://..., without user and password", _bared(hook.url))
    if bool(hook.secret) == (hook.secret_file is not None):
        yield Problem(f"{key}.secret", "must be stated, or `secret_file`, and not both", "(not shown)")
    elif hook.secret and not _is_key(hook.secret):
        rule = f"must be {PREFIX} and base64 of {KEY_BYTES_MIN} to {KEY_BYTES_MAX} random bytes"
        yield Problem(f"{key}.secret", rule, "(not shown)")
    for name in ("events", "subjects"):
        for pattern in getattr(hook, name):
            if not is_pattern(pattern):
                yield Problem(f"{key}.{name}", "must be patterns such as lease.* or lw.local.lease.>", pattern)
    for name in ("owner", "helper"):
        if getattr(hook, name):
            yield from _id(f"{key}.{name}", getattr(hook, name))
    if hook.model:
        yield from _id(f"{key}.model", hook.model, model_id)
    yield from _range(f"{key}.give_up_h", hook.give_up_h, 1, 24 * 365)


def _is_key(secret: str) -> bool:
    try:
        key_of(secret)
    except BadConfigError:
        return False
    return True


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


def http_url(key: str, value: str) -> Iterator[Problem]:
    """Yield a problem if `value` is not where an HTTP server can be reached."""
    yield from _url(key, value, ("http", "https"))
