# ruff: noqa: INP001  (a script beside what it makes, not a package)
"""Makes docs/reference/history.md from the structs that answer why and at: `python docs/reference/history.py [--check]`."""

import ast
import inspect
import sys
import textwrap
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from projections.why import cluster, commit, lease, model, moments, plans, request  # the project's root comes first

PAGE = Path(__file__).with_suffix(".md")
HEAD = """# Why, and when: the answers

What `leaseway why` and `leaseway at` print with `--json`, and what the projector answers at `/admin/v1/why/...` and
`/admin/v1/at` ([HTTP](http.md)). `leaseway why` adds `kind`: request, lease, commit or model. This page is made from the structs
in `projections/why`: run `python docs/reference/history.py` after changing them. Fields are only ever added.

Fields that end in `_us` are microseconds, in `_ns` nanoseconds since 1970. -1 means that it is not known. **Predicted** is what
the master's prices said beforehand; **measured** is what owner or helper timed by their own clocks. Candidates, plans and leases
hold predictions only. In `compared` and `gain` the names of what was measured begin with `measured_`; `won_us` and
`measured_gain_us` are differences of the two, so they are no more exact than the prediction.

A request's time runs from its arrival: by its owner's own clock for what the owner says, by the server's stamps for all others.
What it waited for is one of: `own_queue` (others of its own model before it), `faster_helper` (kept from its owner's engine on
purpose), `own_engine` (given to it, behind what ran there), `desk` and `helper_engine` (the same at the helper), `load` (of a
model).

"""
PARTS = (
    ("/admin/v1/why/request/{id}", (request.RequestStory, moments.Moment, request.Wait, request.Compared)),
    ("Plans and leases in a story", (plans.PlanSeen, plans.Candidate, plans.LeaseLine)),
    ("/admin/v1/why/lease/{id}", (lease.LeaseStory, lease.LeaseStep, lease.LentRequest, lease.Gain)),
    ("/admin/v1/why/commit/{version}", (commit.CommitStory, commit.LeaseTurn, commit.Line)),
    ("/admin/v1/why/model/{node}/{model}", (model.ModelStory, model.HelperSeen)),
    (
        "/admin/v1/at",
        (
            cluster.ClusterAt,
            cluster.NodeAt,
            cluster.QueueAt,
            cluster.LeaseAt,
            cluster.FitAt,
            cluster.RuntimeAt,
            cluster.LinkAt,
            cluster.BreakerAt,
        ),
    ),
)


def main() -> int:
    """Write or check the page; return the exit code."""
    made = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != made:
            sys.stderr.write(
                "docs/reference/history.md is not current; run: .venv/bin/python docs/reference/history.py\n"
            )
            return 1
    else:
        PAGE.write_text(made)
    return 0


def page() -> str:
    """Return the whole page."""
    parts = [f"## {title}\n\n" + "\n".join(section(each) for each in structs) for title, structs in PARTS]
    return HEAD + "\n".join(parts)


def section(struct: type[msgspec.Struct]) -> str:
    """Return one struct as a table of its fields."""
    rows = [f"| {name} | `{kind}` | {about} |" for name, kind, about in fields(struct)]
    return (
        f"### {struct.__name__}\n\n{struct.__doc__}\n\n| field | type | what |\n|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def fields(struct: type[msgspec.Struct]) -> list[tuple[str, str, str]]:
    """Return (name, type, docstring) of each field, as the source says them."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(struct))).body
    assert isinstance(node, ast.ClassDef)
    found: list[tuple[str, str, str]] = []
    for item in node.body:
        if isinstance(item, ast.AnnAssign):
            found.append((ast.unparse(item.target), ast.unparse(item.annotation).replace("|", "or"), ""))
        elif isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and found:
            name, kind, _ = found[-1]
            found[-1] = (name, kind, " ".join(str(item.value.value).split()).replace("|", "\\|"))
    return found


if __name__ == "__main__":
    sys.exit(main())
