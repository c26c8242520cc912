"""Typed configuration: what `leaseway.toml`, environment and flags may say. Loading is in services.config_file."""

from pathlib import Path

import msgspec


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ClusterConfig(_Table, frozen=True, kw_only=True):
    """`[cluster]`."""

    name: str = "local"
    token: str = ""
    settings: dict[str, int | float | bool | str] = {}
    """File values of `cluster.*` settings."""


class BusConfig(_Table, frozen=True, kw_only=True):
    """`[bus]`."""

    url: str = "nats://127.0.0.1:4222"
    durability: str = "strict"
    """strict or relaxed."""
    credentials: Path | None = None
    """This process' credentials file, from the folder of the configuration file; default: `<data>/keys/<name>.json`."""


class Limits(_Table, frozen=True, kw_only=True):
    """`[http.limits]`: every bound of the ingress."""

    body_bytes: int = 8 * 1024 * 1024
    connections: int = 1024
    held: int = 10_000
    """Held requests of one model; over it 503 queue_full."""
    held_bytes: int = 256 * 1024 * 1024
    """Bodies of all held requests of a node together."""
    queue_wait_s: int = 600
    """Longest wait of a held request; over it 504 queue_timeout."""
    upstream_connect_s: int = 10
    drain_s: int = 30


class HttpConfig(_Table, frozen=True, kw_only=True):
    """`[http]`."""

    host: str = "127.0.0.1"
    port: int = 0
    public_url: str = ""
    """How other nodes reach this one; default: http://<host>:<port>."""
    allowed_hosts: str = ""
    """Names, comma-separated, that are answered to besides addresses, localhost and the names in this file; `.lan` stands for all
    below it, `*` for any (services.hosts)."""
    limits: Limits = Limits()


class NodeModel(_Table, frozen=True, kw_only=True):
    """`[[node.models]]`."""

    id: str
    local_id: str = ""
    """The engine's own name for the model; default: `id`."""
    lane: str = "text"
    engine: str = "openai"
    """llama.cpp or openai (any OpenAI-compatible URL)."""
    url: str = ""
    """Where the engine listens; or `command`, which starts it."""
    command: tuple[str, ...] = ()
    """Starts the engine; `{port}` is replaced. The node restarts it when it ends."""
    port: int = 0
    """Where an engine started by `command` listens (`{port}`); 0 takes a free one."""
    slots: int = 1
    context: int = 0
    hash: str = ""
    capabilities: tuple[str, ...] = ()
    runtime: str = ""
    """Models of a node that name the same runtime share it: at most one of their engines is loaded. Empty: it has its own."""
    startup: bool = False
    """It is the one that its runtime loads at the start; where none says so, the first."""
    load_timeout_s: int = 600
    """Longest time that its engine may take to start or load; over it the load has failed. A large model loads for minutes."""
    load_url: str = ""
    """POST here has the engine at `url` load the model; empty: it loads by itself when it is asked for work."""
    load_body: str = ""
    """What is posted there, as JSON; default: `{"model": <local_id>}`."""
    unload_url: str = ""
    """POST here has the engine at `url` give its memory back before another engine of the runtime is loaded."""
    unload_body: str = ""
    """What is posted there, as JSON; default: `{"model": <local_id>}`."""


class NodeConfig(_Table, frozen=True, kw_only=True):
    """`[node]`."""

    id: str = ""
    depth: int = 2
    models: tuple[NodeModel, ...] = ()
    relays: tuple[str, ...] = ()
    """Gateways or nodes, by URL, that are asked in this order to pass a lend on to a helper that cannot be reached."""


class ClickhouseConfig(_Table, frozen=True, kw_only=True):
    """`[clickhouse]`."""

    dsn: str = ""
    """Default: embedded, `chdb://<data>/clickhouse`."""
    cluster: str = ""
    """Name that the servers know their cluster by: tables are then replicated over it. Empty: one server."""


class TelemetryConfig(_Table, frozen=True, kw_only=True):
    """`[telemetry]`."""

    otlp_url: str = ""
    """Base URL of an OpenTelemetry collector (OTLP over HTTP); spans go to `<url>/v1/traces`. Empty: no traces."""


class UrlsConfig(_Table, frozen=True, kw_only=True):
    """`[urls]`: where the processes of a cluster are reached by the command line, and the projector by the masters.

    What is not stated is where `leaseway up` put it, else at loopback.
    """

    master: str = ""
    """Of every master, comma-separated: the one that decides is asked, else one that follows."""
    projector: str = ""
    gateway: str = ""
    console: str = ""


class WebhookConfig(_Table, frozen=True, kw_only=True):
    """`[[webhooks]]`: an endpoint to which the projector posts events."""

    name: str
    """Its place is kept under this name."""
    url: str
    secret: str = ""
    """`whsec_` and base64 of 24 to 64 random bytes: signs what is posted; or `secret_file`."""
    secret_file: Path | None = None
    """A file with the secret alone, mode 0600; from the folder of the configuration file."""
    events: tuple[str, ...] = ()
    """Patterns of event types, such as `lease.*`; default: all."""
    subjects: tuple[str, ...] = ()
    """Patterns of subjects, such as `lw.local.lease.>`; default: all."""
    owner: str = ""
    helper: str = ""
    model: str = ""
    since: str = ""
    """Where a new one begins: empty for now, 0 for the oldest event, 2h, a time, a place."""
    give_up_h: int = 72
    """It is disabled after its endpoint has failed for so many hours."""


class Config(_Table, frozen=True, kw_only=True):
    """The whole of it, defaults filled in."""

    cluster: ClusterConfig = ClusterConfig()
    bus: BusConfig = BusConfig()
    http: HttpConfig = HttpConfig()
    node: NodeConfig = NodeConfig()
    nodes: tuple[NodeConfig, ...] = ()
    """`[[nodes]]`: several nodes on one machine, each as `[node]`; `leaseway up` starts one process for each."""
    clickhouse: ClickhouseConfig = ClickhouseConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    urls: UrlsConfig = UrlsConfig()
    webhooks: tuple[WebhookConfig, ...] = ()
    data: Path = Path()
    """The data directory (flag, environment or `$XDG_DATA_HOME/leaseway`); never in the file."""


def preflight_file(data: Path) -> Path:
    """Return where provisioning leaves what it found about the bus, for the master's /health."""
    return data / "nats" / "preflight.json"
