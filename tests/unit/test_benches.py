"""Benches measure when they are told to, and tell what they do when they are asked."""

import subprocess
import sys

from tests.support.tidy import ROOT

_ASK = """
import runpy, sys
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    try:
        runpy.run_module(f"tests.bench.{name}", run_name="__main__")
    except SystemExit as end:
        print(name, "ended with", end.code)
"""


def test_a_bench_that_is_asked_for_help_says_what_it_measures_and_does_not_begin():
    benches = sorted(path.stem for path in (ROOT / "tests" / "bench").glob("bench_*.py"))
    asked = subprocess.run(
        [sys.executable, "-c", _ASK, *benches], capture_output=True, text=True, timeout=30, cwd=ROOT, check=True
    )
    for bench in benches:
        assert f"{bench} ended with 0" in asked.stdout, asked
        assert f"usage: {bench} " in asked.stdout
