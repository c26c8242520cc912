"""The format of scenario files; docs/reference/scenarios.md says it to people. Unknown keys are errors."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
NodeNumber = Annotated[int, Meta(ge=0, lt=64)]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a scenario file."""


class Cluster(Table, frozen=True, kw_only=True):
    """Nodes and links. Node `i` has a model of its own, model `i`, in its runtime at the beginning."""

    speeds: tuple[Positive, ...] = ()
    """By node; without it there is an owner of speed 1 and `helpers` of `helper_speed`."""
    helpers: Annotated[int, Meta(ge=0, le=63)] = 0
    helper_speed: Positive = 1.0
    helper_speed_sigma: NotNegative | None = None
    """Draws each helper's speed: a lognormal factor, 0.2 to 5."""
    links: Literal["first_to_all", "all_to_all"] | tuple[tuple[NodeNumber, NodeNumber], ...] = "first_to_all"
    load_s: NotNegative | tuple[NotNegative, ...] = 0.0
    """To load any model: one for all nodes, or by node."""
    load_cv: NotNegative = 0.0
    job_s: Positive | tuple[Positive, ...] = 10.0
    """Of one unit of work at speed 1: one for all models, or by model."""
    warm: Literal["if_loads_are_free"] | tuple[NodeNumber, ...] = ()
    """Nodes that have node 0's model in instead of their own."""
    one_model: bool = False
    """Every node serves model 0, owners and helpers alike: nobody ever switches."""
    depth: Annotated[int, Meta(ge=1, le=64)] = 2


class Timing(Table, frozen=True, kw_only=True):
    """Delays of the control path, in seconds."""

    control_s: NotNegative = 0.05
    hop_s: NotNegative = 0.02
    handover_s: NotNegative = 0.03
    tick_s: Positive = 5.0
    restore_after_s: Positive = 1.5
    idle_before_s: NotNegative = 120.0


class Estimates(Table, frozen=True, kw_only=True):
    """What is believed before anything was measured, and how it is learned."""

    first_guess: Literal["truth", "owner"] = "truth"
    """`owner` prices a helper with the owner's own speed until it is measured."""
    service_sigma: NotNegative | None = None
    load_sigma: NotNegative | None = None
    """Draw a lognormal error of the first guesses of service and load times, by node."""
    learn: bool = True
    min_samples: Annotated[int, Meta(ge=1, le=1000)] = 3
    sizes_known: bool = True
    mean_size: Positive | tuple[Positive, ...] = 1.0
    """Of a request whose size nobody knows: one for all models, or by model."""


class Size(Table, frozen=True, kw_only=True):
    """Sizes of requests: lognormal of mean 1, or by quantiles with straight lines between them."""

    cv: Positive | None = None
    shares: tuple[Share, ...] = ()
    values: tuple[Positive, ...] = ()


class Burst(Table, frozen=True, kw_only=True, tag_field="shape", tag="burst"):
    """Many requests at once, perhaps again and again."""

    jobs: Count
    node: NodeNumber = 0
    at_s: NotNegative = 0.0
    times: Count = 1
    every_s: Positive = 60.0
    native: bool = False
    noise: NotNegative = 0.15
    size: Size | None = None


class Stream(Table, frozen=True, kw_only=True, tag_field="shape", tag="stream"):
    """Requests with gamma inter-arrival times."""

    until_s: Positive
    node: NodeNumber = 0
    per_s: Positive | None = None
    offered: Positive | None = None
    """Instead of `per_s`: the share of the node's own capacity."""
    from_s: NotNegative = 0.0
    cv: Positive = 1.0
    native: bool = False
    noise: NotNegative = 0.15
    size: Size | None = None


class Route(Table, frozen=True, kw_only=True):
    """Where a row of a trace goes, and what it costs: ((in / in_block) x in_cost + out x out_cost + base) x factor."""

    node: NodeNumber = 0
    where: dict[str, str] = {}
    """Column -> value; all must be equal."""
    size_column: str = ""
    """Take the size from this column instead of computing it."""
    in_block: Positive = 1.0
    in_cost: NotNegative = 0.0
    out_cost: NotNegative = 0.0
    base: NotNegative = 0.0
    factor: Positive = 1.0


class Trace(Table, frozen=True, kw_only=True, tag_field="shape", tag="trace"):
    """A window of a recorded trace, which begins anywhere up to `latest_start_s`."""

    file: str
    """CSV or JSONL, perhaps .gz: beside the scenario file, or one that is shipped.

    Column t_s, and in_tok and out_tok, or `size_column` of the route.
    """
    window_s: Positive
    routes: Annotated[tuple[Route, ...], Meta(min_length=1)]
    latest_start_s: NotNegative = 0.0
    keep: Share = 1.0
    native: bool = False


class FaultTable(Table, frozen=True, kw_only=True):
    """What goes wrong at a node. A black hole fails every lent request at once, all the time."""

    kind: Literal["crash", "hang", "black_hole"]
    node: NodeNumber
    at_s: NotNegative = 0.0
    spread_s: NotNegative = 0.0
    """Drawn evenly and added to `at_s`."""
    lasts_s: Positive = 60.0
    times: Count = 1
    every_s: Positive = 60.0


class Vary(Table, frozen=True, kw_only=True):
    """Every combination of these values is a scenario of its own."""

    jobs: tuple[Count, ...] = ()
    helpers: tuple[Annotated[int, Meta(ge=0, le=63)], ...] = ()
    helper_speed: tuple[Positive, ...] = ()
    load_s: tuple[NotNegative, ...] = ()
    helper_speed_sigma: tuple[NotNegative, ...] = ()
    estimate_sigma: tuple[NotNegative, ...] = ()
    learn: tuple[bool, ...] = ()


class DiceTable(Table, frozen=True, kw_only=True):
    """What a seed's number is made of."""

    rule: Literal["name", "cell", "sigma"] = "name"
    """The scenario's name; the combination; or factor x seed + 100 x sigma, so that what differs in nothing else is paired."""
    factor: Count = 1


class ScenarioFile(Table, frozen=True, kw_only=True):
    """A whole file."""

    about: str = ""
    cluster: Cluster
    traffic: Annotated[tuple[Burst | Stream | Trace, ...], Meta(min_length=1)]
    faults: tuple[FaultTable, ...] = ()
    timing: Timing = Timing()
    estimates: Estimates = Estimates()
    vary: Vary = Vary()
    dice: DiceTable = DiceTable()
