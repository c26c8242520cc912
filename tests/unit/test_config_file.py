"""What configuration may say, who wins, and what is refused: one line each, naming place, key, rule and value."""

from pathlib import Path

import pytest

from domain.errors import BadConfigError
from services.config import NodeModel
from services.config_file import OWN_COMMAND, default_data, environment_names, load_config, stated_nodes, with_node
from services.config_rules import unreachable

TOKEN = "Zk3v9Qw1Lr7Tn5Xs8Mb2Hy6Jd4Pf0GcWq"
TWO_NODES = """
[[nodes]]
id = "studio"
[[nodes.models]]
id = "small"
url = "http://127.0.0.1:9000"
[[nodes]]
id = "attic"
depth = 3
[[nodes.models]]
id = "small"
command = ["leaseway", "engine", "--port", "{port}"]
"""


def load(tmp_path, text="", overrides=None, **environment):
    file = tmp_path / "leaseway.toml"
    file.write_text(text)
    return load_config(file, data=tmp_path / "data", overrides=overrides, environment=environment)


def refusal(tmp_path, text="", overrides=None, **environment):
    with pytest.raises(BadConfigError) as caught:
        load(tmp_path, text, overrides, **environment)
    line = str(caught.value)
    assert "\n" not in line
    return line.replace(str(tmp_path) + "/", "")


def test_defaults_hold_when_nothing_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config(None, environment={"XDG_DATA_HOME": "/share"})
    assert (config.cluster.name, config.bus.url, config.node.depth) == ("local", "nats://127.0.0.1:4222", 2)
    assert config.data == Path("/share/leaseway")


def test_the_command_line_beats_the_environment_and_the_environment_beats_the_file(tmp_path):
    text = "[http]\nport = 1\nhost = '127.0.0.2'\n[http.limits]\nheld = 5\n"
    config = load(tmp_path, text, {"http.port": 3}, LEASEWAY_HTTP_PORT="2", LEASEWAY_HTTP_LIMITS_HELD="7")
    assert (config.http.port, config.http.host, config.http.limits.held) == (3, "127.0.0.2", 7)


def test_the_environment_reads_text_as_the_type_of_its_key(tmp_path):
    config = load(
        tmp_path, LEASEWAY_NODE_ID="studio", LEASEWAY_NODE_DEPTH="4", LEASEWAY_BUS_CREDENTIALS="/k/studio.json"
    )
    assert (config.node.id, config.node.depth, config.bus.credentials) == ("studio", 4, Path("/k/studio.json"))


def test_a_path_in_the_file_is_meant_from_its_folder_wherever_a_process_is_started(tmp_path, monkeypatch):
    (tmp_path / "etc").mkdir()
    hook = "[[webhooks]]\nname = 'a'\nurl = 'http://a'\nsecret_file = 'hook.secret'\n"
    (tmp_path / "etc" / "leaseway.toml").write_text(f"[bus]\ncredentials = 'keys/studio.json'\n{hook}")
    for elsewhere in (tmp_path, Path("/")):
        monkeypatch.chdir(elsewhere)
        config = load_config(tmp_path / "etc" / "leaseway.toml", environment={})
        paths = (config.bus.credentials, config.webhooks[0].secret_file)
        assert paths == (tmp_path / "etc" / "keys" / "studio.json", tmp_path / "etc" / "hook.secret")
    monkeypatch.chdir(tmp_path / "etc")
    assert load_config(None, environment={}).webhooks[0].secret_file == tmp_path / "etc" / "hook.secret"
    (tmp_path / "etc" / "leaseway.toml").write_text("[bus]\ncredentials = '/keys/studio.json'\n")
    assert load_config(None, environment={}).bus.credentials == Path("/keys/studio.json")


def test_a_path_that_is_said_elsewhere_is_meant_from_where_it_is_said(tmp_path):
    said = load(tmp_path, "[bus]\ncredentials = 'a.json'\n", LEASEWAY_BUS_CREDENTIALS="b.json")
    assert said.bus.credentials == Path("b.json")
    assert load(tmp_path, overrides={"bus.credentials": "c.json"}).bus.credentials == Path("c.json")


def test_leaseway_config_names_the_file(tmp_path):
    (tmp_path / "other.toml").write_text("[cluster]\nname = 'lab'\n")
    config = load_config(None, environment={"LEASEWAY_CONFIG": str(tmp_path / "other.toml")})
    assert config.cluster.name == "lab"


def test_clickhouse_dsn_has_the_name_that_others_use(tmp_path):
    assert load(tmp_path, CLICKHOUSE_DSN="http://ch:8123").clickhouse.dsn == "http://ch:8123"
    both = load(tmp_path, CLICKHOUSE_DSN="http://ch:8123", LEASEWAY_CLICKHOUSE_DSN="http://own:8123")
    assert both.clickhouse.dsn == "http://own:8123"


@pytest.mark.parametrize(
    ("dsn", "rule"),
    [
        ("clickhouse://u:hunter2@ch:9000", "must begin with chdb://, http:// or https://"),
        ("http://u:hunter2@ch:port", "must be a URL, its host or port cannot be read"),
        ("http:///hunter2", "must name a host"),
        ("chdb://hunter2", "must name an absolute directory"),
    ],
)
def test_a_dsn_that_is_none_is_refused_before_anything_starts_and_not_shown(tmp_path, dsn: str, rule: str):
    with pytest.raises(BadConfigError, match=rf"^environment CLICKHOUSE_DSN: clickhouse\.dsn: {rule}") as raised:
        load(tmp_path, CLICKHOUSE_DSN=dsn)
    assert "hunter2" not in str(raised.value)
    for good in ("chdb:///var/lib/ch", "https://u:p@ch:8443/db", ""):
        load(tmp_path, CLICKHOUSE_DSN=good)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[cluster]\nnmae = 'x'\n",
            "leaseway.toml: cluster.nmae: unknown key; known here: name, settings, token; did you mean 'name'?",
        ),
        ("[clutser]\n", "leaseway.toml: clutser: unknown key; known here: bus, clickhouse, cluster, http, node, nodes"),
        ("data = '/x'\n", "leaseway.toml: data: unknown key"),
        ("[http.limits]\nbody = 1\n", "leaseway.toml: http.limits.body: unknown key"),
        ("[[node.models]]\nid = 'a'\nurll = 'x'\n", "leaseway.toml: node.models[0].urll: unknown key"),
        ("[[node.models]]\nurl = 'http://a'\n", "leaseway.toml: node.models[0].id: is missing; it must be stated"),
        ("[http]\nport = 'x'\n", "leaseway.toml: http.port: must be a whole number, got 'x'"),
        ("[http]\nport = true\n", "leaseway.toml: http.port: must be a whole number, got True"),
        ("[http]\nport = 70000\n", "leaseway.toml: http.port: must be 0 to 65535, got 70000"),
        ("[http]\nhost = ''\n", "leaseway.toml: http.host: must be a host name or address, got ''"),
        (
            "[http]\npublic_url = 'ftp://x'\n",
            "leaseway.toml: http.public_url: must be http://host:port or https://host:port",
        ),
        (
            "[http]\nallowed_hosts = 'ai.example.org, http://x'\n",
            "leaseway.toml: http.allowed_hosts: must be names with commas between",
        ),
        ("[http.limits]\nheld = 0\n", "leaseway.toml: http.limits.held: must be 1 to"),
        ("http = 3\n", "leaseway.toml: http: must be a table, got 3"),
        ("[node]\nmodels = 3\n", "leaseway.toml: node.models: must be an array of tables ([[node.models]]), got 3"),
        ("[node]\nid = 'Studio'\n", "leaseway.toml: node.id: must match [a-z0-9][a-z0-9-]{0,30}, got 'Studio'"),
        ("[node]\nid = 'a'\ndepth = 65\n", "leaseway.toml: node.depth: must be 1 to 64, got 65"),
        ("[cluster]\nname = 'a.b'\n", "leaseway.toml: cluster.name: must match [a-z0-9][a-z0-9-]{0,30}, got 'a.b'"),
        ("[bus]\nurl = 'http://x'\n", "leaseway.toml: bus.url: must be nats://host:port or tls://host:port"),
        ("[bus]\nurl = 'nats://x:99999'\n", "leaseway.toml: bus.url: must be nats://host:port"),
        ("[bus]\ndurability = 'lax'\n", "leaseway.toml: bus.durability: must be one of strict, relaxed, got 'lax'"),
        ("[cluster.settings]\nnope = 1\n", "leaseway.toml: cluster.settings.nope: unknown; known are "),
        (
            "[cluster.settings]\noffload_lease_ttl = '3'\n",
            "leaseway.toml: cluster.settings.offload_lease_ttl: must be a duration with its unit (us, ms, s, m, h or d)",
        ),
        ("[node]\nid = 3\n", "leaseway.toml: node.id: must be text, got 3"),
        (
            "[cluster.settings]\nscheduling_backend_depth = 65\n",
            "leaseway.toml: cluster.settings.scheduling_backend_depth",
        ),
        (
            "[node]\nid='a'\n[[node.models]]\nid='m'\nurl='http://x'\nlane='smell'\n",
            "leaseway.toml: node.models[0].lane",
        ),
        (
            "[node]\nid='a'\n[[node.models]]\nid='m'\nurl='http://x'\nengine='vllm'\n",
            "leaseway.toml: node.models[0].engine",
        ),
        (
            "[node]\nid='a'\n[[node.models]]\nid='m'\n",
            "leaseway.toml: node.models[0].url: must be stated, or `command`",
        ),
        ("[node]\nid='a'\n[[node.models]]\nid=\"m\\u0007\"\nurl='http://x'\n", "leaseway.toml: node.models[0].id"),
        ("[node]\nid='a'\n[[nodes]]\nid='a'\n", "leaseway.toml: nodes.id: must be stated once only, got 'a'"),
        ("port = = 1\n", "leaseway.toml: is not TOML: "),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_that_names_place_key_rule_and_value(tmp_path, text, said):
    assert refusal(tmp_path, text).startswith(said)


def test_a_file_that_was_named_must_be_there(tmp_path):
    with pytest.raises(BadConfigError, match=r"nowhere\.toml: cannot be read: No such file"):
        load_config(tmp_path / "nowhere.toml", environment={})


def test_a_wrong_variable_is_refused_by_its_name(tmp_path):
    said = refusal(tmp_path, LEASEWAY_HTTP_PORT="eighty")
    assert said == "environment LEASEWAY_HTTP_PORT: http.port: must be a whole number, got 'eighty'"
    said = refusal(tmp_path, LEASEWAY_HTTP_PRT="80")
    rule = "unknown variable; docs/reference/cli.md lists those that may be set; did you mean 'LEASEWAY_HTTP_PORT'?"
    assert said == f"environment LEASEWAY_HTTP_PRT: {rule}"


def test_a_wrong_flag_is_refused_as_such(tmp_path):
    assert refusal(tmp_path, overrides={"http.port": -1}) == "command line: http.port: must be 0 to 65535, got -1"


@pytest.mark.parametrize("token", ["", "short", "changeme-changeme-changeme-changeme", "a" * 40])
def test_a_process_that_others_reach_needs_a_real_token_and_the_refusal_does_not_show_it(tmp_path, token):
    said = refusal(tmp_path, f"[cluster]\ntoken = '{token}'\n[http]\nhost = '0.0.0.0'\n")
    assert said.startswith("leaseway.toml: cluster.token: must ")
    assert not token or token not in said


def test_a_bus_elsewhere_makes_a_cluster_too(tmp_path):
    assert "cluster.token" in refusal(tmp_path, "[bus]\nurl = 'nats://10.0.0.1:4222'\n")
    config = load(tmp_path, f"[cluster]\ntoken = '{TOKEN}'\n[bus]\nurl = 'nats://10.0.0.1:4222'\n")
    assert config.cluster.token == TOKEN


def test_a_token_is_not_needed_on_loopback_but_a_placeholder_is_refused_there_as_well(tmp_path):
    assert load(tmp_path).cluster.token == ""
    assert "cluster.token" in refusal(tmp_path, LEASEWAY_CLUSTER_TOKEN="changeme")


def test_a_secret_is_not_shown_when_it_has_the_wrong_type(tmp_path):
    assert "12345678" not in refusal(tmp_path, "[cluster]\ntoken = 12345678\n")


def test_one_file_serves_all_processes_and_each_node_takes_its_own_table(tmp_path):
    config = load(tmp_path, TWO_NODES)
    assert [node.id for node in stated_nodes(config)] == ["studio", "attic"]
    attic = with_node(config, "attic")
    assert (attic.node.id, attic.node.depth, attic.nodes) == ("attic", 3, ())
    with pytest.raises(BadConfigError, match="node 'cellar': must be the id of"):
        with_node(config, "cellar")


def test_an_engine_command_that_begins_with_leaseway_is_this_program_whatever_path_says(tmp_path):
    (model,) = with_node(load(tmp_path, TWO_NODES), "attic").node.models
    assert isinstance(model, NodeModel)
    assert model.command == (*OWN_COMMAND, "engine", "--port", "{port}")


def test_the_data_directory_follows_xdg():
    assert default_data({"HOME": "/h"}) == Path("/h/.local/share/leaseway")
    assert default_data({"HOME": "/h", "XDG_DATA_HOME": "relative"}) == Path("/h/.local/share/leaseway")
    assert default_data({"HOME": "/h", "XDG_DATA_HOME": "/x", "LEASEWAY_DATA": "/d"}) == Path("/d")


def test_every_plain_key_has_a_variable():
    assert {"LEASEWAY_CLUSTER_TOKEN", "LEASEWAY_HTTP_LIMITS_DRAIN_S", "LEASEWAY_DATA"} <= set(environment_names())


def test_a_process_may_have_defaults_of_its_own_that_everybody_else_beats(tmp_path):
    file = tmp_path / "leaseway.toml"
    file.write_text("[http]\nport = 7\n")
    own = {"http.port": 8000, "bus.durability": "relaxed"}
    config = load_config(file, defaults=own, environment={})
    assert (config.http.port, config.bus.durability) == (7, "relaxed")
    assert load_config(file, defaults=own, environment={"LEASEWAY_BUS_DURABILITY": "strict"}).bus.durability == "strict"


BUS_ELSEWHERE = "[bus]\nurl = 'nats://10.0.0.1:4222'\n"


@pytest.mark.parametrize(
    "text",
    [
        "[http]\nhost = '0.0.0.0'\n",
        "[http]\nhost = '::'\n",
        "[http]\nhost = '10.0.0.5'\npublic_url = 'http://0.0.0.0:80'\n",
        BUS_ELSEWHERE,
        BUS_ELSEWHERE + "[http]\nhost = '10.0.0.5'\npublic_url = 'http://localhost:80'\n",
    ],
)
def test_a_node_that_would_tell_others_a_url_of_its_own_machine_alone_must_say_how_it_is_found(tmp_path, text):
    (problem,) = unreachable(load(tmp_path, f"[cluster]\ntoken = '{TOKEN}'\n{text}"))
    assert problem.key == "http.public_url"
    assert problem.rule.startswith("must be a URL at which others find a node that listens at ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[http]\nhost = '10.0.0.5'\n",
        "[http]\nhost = '0.0.0.0'\npublic_url = 'http://10.0.0.5:80'\n",
        BUS_ELSEWHERE + "[http]\npublic_url = 'https://node.example'\n",
        BUS_ELSEWHERE + "[http]\nhost = 'node.example'\n",
    ],
)
def test_a_node_that_others_find_or_that_has_only_this_machine_need_not_say_more(tmp_path, text):
    assert list(unreachable(load(tmp_path, f"[cluster]\ntoken = '{TOKEN}'\n{text}"))) == []
