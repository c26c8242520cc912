"""Loading of the configuration: command line > environment `LEASEWAY_<TABLE>_<KEY>` > `leaseway.toml` > defaults.

Every refusal is one line: where it was said, the key, the rule, the value. Secrets are never shown.
"""

import os
import re
import sys
import tomllib
import typing
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from domain.errors import BadConfigError
from domain.spelling import did_you_mean
from services.config import Config, NodeConfig
from services.config_rules import Problem, problems

CONFIG_NAME = "leaseway.toml"
OWN_NAME = "leaseway"
OWN_COMMAND = (sys.executable, "-P", "-m", "services.cli")
"""This very program, whatever PATH says; stands for the word `leaseway` at the start of an engine's command."""
STANDALONE_DEFAULTS: Final = {"bus.durability": "strict"}
"""Not relaxed: with it even a killed nats-server takes acknowledged facts along (docs/adr/0013)."""
_SECRET = {"cluster.token", "clickhouse.dsn"}
_PREFIX = "LEASEWAY_"
_KINDS = {"int": "a whole number", "str": "text", "bool": "true or false", "float": "a number", "Path": "a path"}
"""What people call the kinds of values."""
_NOT_KEYS = {"LEASEWAY_CONFIG", "LEASEWAY_DATA"}
_FOREIGN = ("LEASEWAY_FAULT_", "LEASEWAY_TEST_")
"""Variables of the fault points and of the test rig: no configuration."""


def load_config(
    path: Path | None,
    *,
    data: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    defaults: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Return the whole configuration, checked. A path in the file is meant from its folder, any other from the working directory.

    Args:
        path: the file (`--config`); None takes `LEASEWAY_CONFIG`, then `leaseway.toml` of the working directory if it is there.
        data: the data directory (`--data`); None takes `LEASEWAY_DATA`, then `$XDG_DATA_HOME/leaseway`.
        overrides: what the command line says, by dotted key, such as `{"http.port": 8000}`.
        defaults: what this process takes where nobody says anything, by dotted key.
        environment: the variables; None takes the process' own.

    Raises:
        BadConfigError: anything that breaks a rule; nothing has been changed.
    """
    variables = os.environ if environment is None else environment
    sources = _Sources()
    tree = _read_file(path, variables, sources)
    for key, value in (defaults or {}).items():
        _put_default(tree, key, value)
    for key, (variable, text) in _read_environment(variables).items():
        _put(tree, key, text, sources, f"environment {variable}")
    for key, value in (overrides or {}).items():
        _put(tree, key, value, sources, "command line")
    config: Config = _convert_table(tree, Config, "", sources)
    config = msgspec.structs.replace(config, data=(data or default_data(variables)).absolute())
    for problem in problems(config):
        raise BadConfigError(_line(problem, sources))
    return config


def with_node(config: Config, node: str) -> Config:
    """Return `config` for the process of one node: the table of `[node]` or `[[nodes]]` with that id stands as its `[node]`.

    An empty `node` takes the first one.

    Raises:
        BadConfigError: there is no such table.
    """
    stated = (*config.nodes, config.node) if config.node.id else config.nodes
    for candidate in stated:
        if candidate.id == node or not node:
            return msgspec.structs.replace(config, node=_with_own_command(candidate), nodes=())
    known = ", ".join(one.id for one in stated) or "none"
    raise BadConfigError(
        f"command line: node {node!r}: must be the id of [node] or of one of [[nodes]]; stated: {known}"
    )


def stated_nodes(config: Config) -> tuple[NodeConfig, ...]:
    """Return every node that the configuration states, `[node]` first."""
    return (config.node, *config.nodes) if config.node.id else config.nodes


def default_data(variables: Mapping[str, str]) -> Path:
    """Return the data directory when no flag names one."""
    if variables.get("LEASEWAY_DATA"):
        return Path(variables["LEASEWAY_DATA"])
    share = Path(variables.get("XDG_DATA_HOME") or "")
    if not share.is_absolute():  # the XDG specification: a relative path is to be ignored
        share = Path(variables.get("HOME") or "~").expanduser() / ".local" / "share"
    return share / "leaseway"


class _Sources:
    """Remembers who said what, by dotted key, so that a refusal names the place to mend."""

    def __init__(self) -> None:
        self.file = "configuration"
        self.folder = Path()
        """Of the file: what it says of paths is meant from there, wherever a process is started."""
        self._by_key: dict[str, str] = {}

    def say(self, key: str, source: str) -> None:
        self._by_key[key] = source

    def of(self, key: str) -> str:
        return self._by_key.get(key, self.file)

    def folder_of(self, key: str) -> Path:
        """Return from where a path is meant: the file's folder, or the working directory of whoever said it otherwise."""
        return Path() if key in self._by_key else self.folder

    def is_text(self, key: str) -> bool:
        """Tell whether the value came as text (an environment variable), to be read as the key's type."""
        return self.of(key).startswith("environment ")


def config_path(path: Path | None, variables: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file that is read: `path`, else what `LEASEWAY_CONFIG` names, else `leaseway.toml` here if it is there."""
    if path is not None:
        return path
    if named := variables.get("LEASEWAY_CONFIG"):
        return Path(named)
    return Path(CONFIG_NAME) if Path(CONFIG_NAME).is_file() else None


def _read_file(path: Path | None, variables: Mapping[str, str], sources: _Sources) -> dict[str, Any]:
    found = config_path(path, variables)
    if found is None:
        return {}
    sources.file, sources.folder = str(found), found.absolute().parent
    try:
        return tomllib.loads(found.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadConfigError(f"{found}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfigError(f"{found}: is not TOML: {error}") from None


def _read_environment(variables: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return {dotted key: (variable, text)} of what the environment says."""
    known = {_variable(key): key for key in _leaf_keys(Config, "")}
    said: dict[str, tuple[str, str]] = {}
    if variables.get("CLICKHOUSE_DSN"):
        said["clickhouse.dsn"] = ("CLICKHOUSE_DSN", variables["CLICKHOUSE_DSN"])
    for name in sorted(variables):
        if not name.startswith(_PREFIX) or name in _NOT_KEYS or name.startswith(_FOREIGN):
            continue
        if name not in known:
            perhaps = did_you_mean(name, known)
            raise BadConfigError(
                f"environment {name}: unknown variable; docs/reference/cli.md lists those that may be set{perhaps}"
            )
        said[known[name]] = (name, variables[name])
    return said


def _variable(key: str) -> str:
    return _PREFIX + key.replace(".", "_").upper()


def environment_names() -> list[str]:
    """Return every variable that configures something, sorted."""
    return sorted([*_NOT_KEYS, "CLICKHOUSE_DSN", *(_variable(key) for key in _leaf_keys(Config, ""))])


def _leaf_keys(table: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    """Yield the dotted keys that hold one plain value: these may come from the environment."""
    for field in msgspec.structs.fields(table):
        if _is_table(field.type):
            yield from _leaf_keys(field.type, f"{prefix}{field.name}.")
        elif field.type in (str, int, bool) or (field.type is not Path and Path in typing.get_args(field.type)):
            yield prefix + field.name


def _put_default(tree: dict[str, Any], key: str, value: object) -> None:
    table, leaf = key.split(".")
    inner = tree.setdefault(table, {})
    if isinstance(inner, dict):
        inner.setdefault(leaf, value)


def _put(tree: dict[str, Any], key: str, value: object, sources: _Sources, source: str) -> None:
    *tables, leaf = key.split(".")
    for table in tables:
        tree = tree.setdefault(table, {})
        if not isinstance(tree, dict):
            raise BadConfigError(f"{sources.file}: {table}: must be a table, got {tree!r}")
    tree[leaf] = value
    sources.say(key, source)


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _convert_table(raw: Any, table: type[msgspec.Struct], prefix: str, sources: _Sources) -> Any:
    if not isinstance(raw, dict):
        raise BadConfigError(f"{sources.of(prefix)}: {prefix.rstrip('.')}: must be a table, got {raw!r}")
    fields = {field.name: field for field in msgspec.structs.fields(table) if prefix or field.name != "data"}
    for key in raw:
        if key not in fields:
            known = ", ".join(sorted(fields))
            perhaps = did_you_mean(str(key), fields)
            raise BadConfigError(
                f"{sources.of(prefix + key)}: {prefix}{key}: unknown key; known here: {known}{perhaps}"
            )
    for name, field in fields.items():
        if field.required and name not in raw:
            raise BadConfigError(f"{sources.file}: {prefix}{name}: is missing; it must be stated")
    return table(**{name: _convert(raw[name], fields[name].type, prefix + name, sources) for name in raw})


def _convert(value: Any, kind: Any, key: str, sources: _Sources) -> Any:
    if _is_table(kind):
        return _convert_table(value, kind, f"{key}.", sources)
    arguments = typing.get_args(kind)
    if arguments and _is_table(arguments[0]):
        if not isinstance(value, list):
            raise BadConfigError(f"{sources.of(key)}: {key}: must be an array of tables ([[{key}]]), got {value!r}")
        return tuple(_convert_table(item, arguments[0], f"{key}[{at}].", sources) for at, item in enumerate(value))
    try:
        hook = partial(_from_text, sources.folder_of(key))
        return msgspec.convert(value, kind, strict=not sources.is_text(key), dec_hook=hook)
    except msgspec.ValidationError as error:
        rule = str(error).replace("`", "").replace("Expected", "must be").split(", got")[0].split(" - at")[0]
        for ours, theirs in _KINDS.items():
            rule = re.sub(rf"must be {ours}\b", f"must be {theirs}", rule)
        raise BadConfigError(_line(Problem(key, rule, value), sources)) from None


def _from_text(folder: Path, kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return folder / value
    raise TypeError(f"Expected {kind.__name__}")


def _line(problem: Problem, sources: _Sources) -> str:
    shown = f"{len(str(problem.value))} characters (not shown)" if problem.key in _SECRET else repr(problem.value)
    got = "" if problem.rule.endswith("?") else f", got {shown}"  # a misspelt key: it stands there already
    return f"{sources.of(problem.key)}: {problem.key}: {problem.rule}{got}"


def _with_own_command(node: NodeConfig) -> NodeConfig:
    models = tuple(
        msgspec.structs.replace(model, command=(*OWN_COMMAND, *model.command[1:]))
        if model.command[:1] == (OWN_NAME,)
        else model
        for model in node.models
    )
    return msgspec.structs.replace(node, models=models)
