"""The compose file and all that it mounts: read by the parsers that will read them, as far as no container engine is needed."""

import hashlib
import http.client
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from adapters.keys import load_credentials
from adapters.nats.server import VERSION_MIN, find_binary
from services.config_file import load_config, with_node
from services.config_rules import unreachable
from services.telemetry.table import BY_NAME, METRICS

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
SCHEMA = Path(__file__).parent / "compose_schema" / "compose-spec.json"
FILE: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OURS = {name for name, service in SERVICES.items() if "build" in service}
TOKEN = "0123456789abcdef" * 4
PORTS = {"gateway": 8000, "node": 8100, "projector": 8200, "master": 8300, "console": 8500}
_SUFFIXES = ("_bucket", "_sum", "_count")


def test_the_schema_is_the_one_that_was_taken():
    said = (SCHEMA.parent / "README.md").read_text()
    assert hashlib.sha256(SCHEMA.read_bytes()).hexdigest() in said


def test_the_file_is_one_of_the_compose_specification():
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator(schema).validate(FILE)
    broken = {**FILE, "services": {**SERVICES, "gateway": {**SERVICES["gateway"], "healthchek": {}}}}
    assert not jsonschema.Draft202012Validator(schema).is_valid(broken)


def mounts(service: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (source, target) of what a service mounts."""
    found = []
    for mount in service.get("volumes", ()):
        if isinstance(mount, str):
            source, target = mount.replace("${MODELS:-./models}", "./models").split(":")[:2]
        else:
            source, target = mount["source"], mount["target"]
        found.append((source, target))
    return found


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_all_that_a_service_needs_is_there(name: str):
    service = SERVICES[name]
    for source, _ in mounts(service):
        if source.startswith("./"):
            assert source == "./models" or (COMPOSE / source).exists(), source
        else:
            assert source in FILE["volumes"], source
    assert set(service["networks"]) <= set(FILE["networks"])
    wanted = service.get("depends_on", {})
    assert set(wanted) <= set(SERVICES)
    for other, how in wanted.items() if isinstance(wanted, dict) else ():
        if how["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other], f"{name} waits for {other}, which says nothing of its health"


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_process_of_ours_may_no_more_than_it_must(name: str):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "privileged" not in service
    keys = [mount for mount in service["volumes"] if not isinstance(mount, str)]
    if name == "console":  # it is for browsers: nothing that could be taken from it is there
        assert [target for _, target in mounts(service)] == ["/etc/leaseway"]
        assert "LEASEWAY_BUS_CREDENTIALS" not in service["environment"]
    elif name not in {"keys", "provision"}:
        assert [mount["volume"]["subpath"] for mount in keys] == [
            {"master-1": "master", "master-2": "master", "gateway": "gateway-main"}.get(name, name)
        ]
        assert all(mount["read_only"] for mount in keys)
        assert not any(source == "admin" for source, _ in mounts(service)), (
            "the operator's keys are for provisioning alone"
        )
    if name not in {"keys", "provision"}:
        assert service["healthcheck"]["test"] == ["CMD", "python", "/opt/healthy.py", str(PORTS[service["command"][0]])]


def test_only_the_gateway_is_for_others_than_operators():
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"gateway", "console", "prometheus", "grafana"}
    assert all("127.0.0.1" in port for ports in published.values() for port in ports)
    assert FILE["networks"]["cluster"]["internal"] is True


def test_every_variable_is_in_the_example_and_every_one_there_is_used():
    said = set(re.findall(r"^([A-Z_]+)=", (COMPOSE / ".env.example").read_text(), re.MULTILINE))
    used = set(re.findall(r"\$\{([A-Z_]+)", (COMPOSE / "compose.yaml").read_text()))
    assert said == used
    defaults = dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", (COMPOSE / "compose.yaml").read_text()))
    example = dict(re.findall(r"^([A-Z_]+)=(.*)$", (COMPOSE / ".env.example").read_text(), re.MULTILINE))
    assert {name: example[name] for name in defaults} == defaults


def environment_of(name: str) -> dict[str, str]:
    """Return the environment of a service, its secrets filled in."""
    filled = {"${CLUSTER_TOKEN:?make one with openssl rand -hex 32}": TOKEN, "${OTLP_URL:-}": ""}
    said = {key: filled.get(value, value) for key, value in SERVICES[name].get("environment", {}).items()}
    return {key: re.sub(r"\$\{CLICKHOUSE_PASSWORD[^}]*\}", "letters1", value) for key, value in said.items()}


@pytest.mark.parametrize("name", sorted(OURS - {"keys"}))
def test_the_configuration_of_each_process_is_one_that_it_takes(name: str, tmp_path: Path):
    environment = environment_of(name)
    file = COMPOSE / "leaseway" / Path(environment["LEASEWAY_CONFIG"]).name
    config = load_config(file, data=tmp_path, environment=environment)
    assert config.cluster.name == "compose"
    assert [url.strip() for url in config.bus.url.split(",")] == [f"nats://nats-{n}:4222" for n in (1, 2, 3)]
    command = SERVICES[name]["command"]
    if command == ["node"]:
        config = with_node(config, "")
        assert config.node.id == name
        assert config.http.public_url == f"http://{name}:8100"
        assert list(unreachable(config)) == []
        assert config.node.models[0].url == f"http://engine-{name}:8080"
    if command == ["projector"]:
        assert config.clickhouse.dsn == "http://leaseway:letters1@clickhouse:8123/leaseway"


def test_the_file_says_where_each_process_is_that_commands_and_the_console_ask():
    urls = load_config(COMPOSE / "leaseway" / "cluster.toml", environment=environment_of("console")).urls
    said = [url for part in (urls.gateway, urls.projector, urls.master, urls.console) for url in part.split(",")]
    asked = [name for name in SERVICES if SERVICES[name].get("command", [""])[0] in PORTS.keys() - {"node"}]
    assert sorted(said) == sorted(f"http://{name}:{PORTS[SERVICES[name]['command'][0]]}" for name in asked)


@pytest.mark.real
def test_the_console_answers_to_the_name_that_prometheus_asks_it_by_and_says_that_it_is_well(tmp_path: Path):
    ours = {
        **environment_of("console"),
        "LEASEWAY_CONFIG": str(COMPOSE / "leaseway" / "cluster.toml"),
        "LEASEWAY_HTTP_PORT": "0",
        "LEASEWAY_DATA": str(tmp_path),
    }
    command = [sys.executable, "-m", "services.cli", *SERVICES["console"]["command"]]
    with subprocess.Popen(command, env=os.environ | ours, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = json.loads(process.stdout.readline())["url"].rpartition(":")[2]
            assert [status_of(port, host) for host in ("console:8500", "127.0.0.1:8500")] == [200, 200]
            assert status_of(port, "elsewhere:8500") == 421
            well = subprocess.run([sys.executable, COMPOSE / "healthy.py", port], timeout=20, check=False)
            assert well.returncode == 0
        finally:
            process.terminate()
    assert list(tmp_path.iterdir()) == []


def status_of(port: str, host: str) -> int:
    """Return the status of /metrics at `port`, asked by the name `host`."""
    asking = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
    asking.request("GET", "/metrics", headers={"Host": host})
    status = asking.getresponse().status
    asking.close()
    return status


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which keys.sh has run, with the program of this very environment."""
    root = tmp_path_factory.mktemp("compose")
    (root / "bin").mkdir()
    program = root / "bin" / "leaseway"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m services.cli "$@"\n')
    program.chmod(0o755)
    environment = {
        **environment_of("keys"),
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "LEASEWAY_CONFIG": str(COMPOSE / "leaseway" / "cluster.toml"),
        "DATA": str(root / "data"),
        "KEYS": str(root / "keys"),
    }
    for nodes in (environment["NODES"], ""):  # a second run finds what is there and leaves it
        made = subprocess.run(
            ["/bin/sh", COMPOSE / "leaseway" / "keys.sh"],
            env={**environment, "NODES": nodes}, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
    return root


def test_each_process_gets_its_own_key_and_no_other(laid_out: Path):
    keys = laid_out / "keys"
    found = {path.parent.name: path for path in keys.glob("*/*.json")}
    assert set(found) == {"master", "projector", "gateway-main", "studio", "attic"}
    for name, path in found.items():
        credentials = load_credentials(path)
        assert (credentials.name, credentials.cluster) == (name, "compose")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [each.name for each in path.parent.iterdir()] == [path.name]
    public = (keys / "bus" / "accounts.conf").read_text()
    assert "SU" not in re.findall(r"\b(SU)[A-Z0-9]{50,}", public)


@pytest.mark.real
@pytest.mark.parametrize("number", [1, 2, 3])
def test_each_server_s_file_is_one_that_nats_server_takes(laid_out: Path, tmp_path: Path, number: int):
    mounted = {target: source for source, target in mounts(SERVICES[f"nats-{number}"])}
    shutil.copy(COMPOSE / mounted["/etc/nats/nats.conf"], tmp_path / "nats.conf")
    shutil.copytree(laid_out / "keys" / "bus", tmp_path / "bus")
    check = subprocess.run(
        [find_binary(), "-t", "-c", tmp_path / "nats.conf"], capture_output=True, text=True, timeout=20, check=False
    )
    assert check.returncode == 0, check.stderr
    text = (tmp_path / "nats.conf").read_text()
    assert f"server_name: nats-{number}\n" in text
    assert all(f"nats-route://nats-{n}:6222" in text for n in (1, 2, 3))
    assert "sync_interval: always" in text


def test_the_log_of_the_bus_takes_no_more_than_so_much_of_the_disk():
    for number in (1, 2, 3):
        assert SERVICES[f"nats-{number}"]["logging"]["options"] == {"max-size": "16m", "max-file": "5"}


def test_the_bus_image_is_new_enough():
    example = (COMPOSE / ".env.example").read_text()
    found = re.search(r"nats:(\d+)\.(\d+)\.(\d+)-alpine", example)
    assert found is not None
    assert tuple(map(int, found.groups())) >= VERSION_MIN


def test_the_image_is_built_of_what_is_there_and_runs_as_nobody_special():
    lines = (COMPOSE / "Dockerfile").read_text().splitlines()
    copied = [words for line in lines if (words := line.split())[:1] == ["COPY"] and "--from" not in line]
    for words in copied:
        assert all((ROOT / source).exists() for source in words[1:-1]), words
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001:10001"]
    allowed = (COMPOSE / "Dockerfile.dockerignore").read_text()
    assert all(f"!{source.split('/')[0]}" in allowed for words in copied for source in words[1:-1])


def names_in(expression: str) -> set[str]:
    """Return the metrics of ours in a PromQL expression, as the table names them."""
    found = set()
    for word in re.findall(r"\bleaseway_[a-z_]+", expression):
        bare = next((word.removesuffix(end) for end in _SUFFIXES if word.endswith(end)), word)
        found.add(bare if bare in BY_NAME else word)
    return found


def check_labels(expression: str) -> None:
    """Every label that the expression groups or selects by is one of its metrics, or of Prometheus itself."""
    labels = {"le", "job", "instance"} | {label for name in names_in(expression) for label in BY_NAME[name].labels}
    grouped = {
        label.strip() for found in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for label in found.split(",")
    }
    selected = set(re.findall(r"[{,]\s*([a-z_]+)\s*[=!]~?", expression))
    assert grouped | selected <= labels, expression


def test_the_dashboard_is_current_and_shows_only_metrics_that_are_stated():
    check = subprocess.run([sys.executable, COMPOSE / "grafana" / "dashboard.py", "--check"], check=False)
    assert check.returncode == 0, "run: python compose/grafana/dashboard.py"
    made = json.loads((COMPOSE / "grafana" / "dashboards" / "leaseway.json").read_text())
    panels = [panel for panel in made["panels"] if panel["type"] != "row"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    shown: set[str] = set()
    for query in queries:
        assert names_in(query) <= set(BY_NAME), query
        check_labels(query)
        shown |= names_in(query)
        for name in names_in(query):
            assert ("rate(" in query) == (BY_NAME[name].kind != "gauge"), query
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])
    places = [tuple(panel["gridPos"][side] for side in "xy") for panel in panels]
    assert len(set(places)) == len(places)
    source = yaml.safe_load((COMPOSE / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"][
        0
    ]
    assert {panel["datasource"]["uid"] for panel in panels} == {source["uid"]}
    assert len(shown) > len(METRICS) // 2


def test_prometheus_scrapes_every_process_at_its_port():
    config = yaml.safe_load((COMPOSE / "prometheus" / "prometheus.yml").read_text())
    targets = {
        target for job in config["scrape_configs"] for each in job["static_configs"] for target in each["targets"]
    }
    ours = {f"{name}:{PORTS[SERVICES[name]['command'][0]]}" for name in OURS - {"keys", "provision"}}
    assert targets == ours | {"engine-studio:8080", "engine-attic:8080"}
    assert all((COMPOSE / "prometheus" / file).is_file() for file in config["rule_files"])


def test_alerts_are_about_metrics_that_are_stated():
    groups = yaml.safe_load((COMPOSE / "prometheus" / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert names_in(rule["expr"]) <= set(BY_NAME), rule
        check_labels(rule["expr"])
        named = set(re.findall(r"\$labels\.([a-z_]+)", rule["annotations"]["summary"]))
        stated = {label for name in names_in(rule["expr"]) for label in BY_NAME[name].labels}
        assert named <= stated | {"instance", "job"}, rule
    assert len({rule["alert"] for rule in rules}) == len(rules)


REFUSED = """
rule_files: [alerts.yml]
tests:
  - interval: 15s
    input_series:
      - {series: 'leaseway_gateway_nodes_able{job="leaseway-gateway", instance="gateway:8000", model="chat"}', values: "0x40"}
      - {series: 'leaseway_gateway_nodes_able{job="leaseway-gateway", instance="gateway:8000", model="draw"}', values: "1x40"}
      - {series: 'leaseway_engine_up{job="leaseway-node", instance="studio:8100", model="chat"}', values: "0x40"}
      - {series: 'leaseway_requests_held{job="leaseway-node", instance="studio:8100", model="chat"}', values: "0x40"}
      - {series: 'leaseway_node_health{instance="master-1:8300", node="attic", health="offline"}', values: "1x40"}
      - {series: 'leaseway_node_health{instance="master-2:8300", node="attic", health="offline"}', values: "1x40"}
    promql_expr_test:
      - expr: count by (alertname) (ALERTS{alertstate="firing", alertname=~"Leaseway(ModelUnserved|NodeUnwell)"})
        eval_time: 5m
        exp_samples:
          - {labels: '{alertname="LeasewayModelUnserved"}', value: 1}
          - {labels: '{alertname="LeasewayNodeUnwell"}', value: 1}
"""


WAITING = """
rule_files: [alerts.yml]
tests:
  - interval: 15s
    input_series:
      - {series: 'leaseway_clickhouse_up{job="projector", instance="attic"}', values: "1x40"}
      - {series: 'leaseway_projector_lag_messages{job="projector", instance="attic", stream="LW_EVENTS"}', values: "7x40"}
      - {series: 'leaseway_clickhouse_up{job="projector", instance="studio"}', values: "0x40"}
      - {series: 'leaseway_clickhouse_trouble{job="projector", instance="studio", cause="taken"}', values: "1x40"}
      - {series: 'leaseway_projector_lag_messages{job="projector", instance="studio", stream="LW_EVENTS"}', values: "90000x40"}
    promql_expr_test:
      - {expr: 'ALERTS{alertname="LeasewayRowsLag"}', eval_time: 9m, exp_samples: []}
  - interval: 15s
    input_series:
      - {series: 'leaseway_clickhouse_up{job="projector", instance="attic"}', values: "0x40"}
      - {series: 'leaseway_clickhouse_trouble{job="projector", instance="attic", cause="away"}', values: "1x40"}
      - {series: 'leaseway_projector_lag_messages{job="projector", instance="attic", stream="LW_EVENTS"}', values: "90000x40"}
    promql_expr_test:
      - expr: count by (stream, instance) (ALERTS{alertstate="firing", alertname="LeasewayRowsLag"})
        eval_time: 9m
        exp_samples:
          - {labels: '{stream="LW_EVENTS"}', value: 1}
          - {labels: '{instance="attic"}', value: 1}
"""


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Prometheus")
@pytest.mark.parametrize("said", [REFUSED, WAITING], ids=["refused", "waiting"])
def test_alerts_are_one_for_what_is_wrong_and_none_for_what_is_not(tmp_path: Path, said: str):
    shutil.copy(COMPOSE / "prometheus" / "alerts.yml", tmp_path)
    (tmp_path / "test.yml").write_text(said)
    made = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
