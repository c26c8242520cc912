"""The checks behind tests/unit/test_tidy.py. Each returns findings as `path:line: what is wrong; what to do`."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("domain", "adapters", "projections", "services")
MOCKS = {"Mock", "MagicMock", "AsyncMock", "create_autospec"}
FUNCTION_LINES_MAX, MODULE_LINES_MAX, TEST_MODULE_LINES_MAX = 60, 400, 500
READS_PEOPLES_NUMBERS = {"domain/control/settings.py"}
"""They turn what a person wrote (1.5 s) into integers. All else in the domain has integers only: decisions must replay bit for
bit, and sums of floats and libm differ between machines."""
DOMAIN_MAY_IMPORT = {
    *(
        "abc",
        "array",
        "base64",
        "bisect",
        "collections",
        "dataclasses",
        "difflib",
        "enum",
        "functools",
        "hashlib",
        "heapq",
        "hmac",
    ),
    *("itertools", "json", "operator", "re", "string", "struct", "types", "typing", "unicodedata"),
    *("domain", "msgspec"),
}
# written in parts, so that this file does not find itself
_OUTSIDE = re.compile(
    r"(?<![\w.])/(?:wo" + r"rk|ro" + r"ot|ho" + r"me/\w)(?:/|\b)"
    r"|\bpythonho" + r"sted\b|\bindex-" + r"url\b|\bpypi\." + r"org/simple|\bproto" + r"types/"
    r"|\b(?:design|contract|style|reports)\."
    + r"md\b|\bnotes/(?:nats|engines|scheduling|reliability|clickhouse)\b|\bse"
    + r"eds/"
)
_FRAGMENT = re.compile(r"\d+\.[a-z0-9-]+\.(breaking|added|fixed)\.md")


def modules(*folders: str) -> Iterator[Path]:
    """Yield every Python file below `folders` of the repository, in order."""
    for folder in folders:
        path = ROOT / folder
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def exact_modules() -> Iterator[Path]:
    """Yield the modules that may not know a float."""
    yield from (path for path in modules("domain") if str(path.relative_to(ROOT)) not in READS_PEOPLES_NUMBERS)


def at(path: Path, line: int, finding: str) -> str:
    """Return a finding in the form that editors jump to."""
    return f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}: {finding}"


def tree_of(path: Path) -> ast.Module:
    """Return the module's syntax."""
    return ast.parse(path.read_text(), filename=str(path))


def oversized(path: Path) -> Iterator[str]:
    """Find modules and functions that are too long."""
    lines = path.read_text().count("\n")
    allowed = TEST_MODULE_LINES_MAX if path.is_relative_to(ROOT / "tests") else MODULE_LINES_MAX
    if lines > allowed:
        yield at(path, lines, f"{lines} lines, {allowed} are allowed; split it by what it is about")
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                remedy = "keep the branches here and move straight-line work into helpers"
                yield at(
                    path, node.lineno, f"{node.name} has {length} lines, {FUNCTION_LINES_MAX} are allowed; {remedy}"
                )


def floats(path: Path, tree: ast.Module) -> Iterator[str]:
    """Find what makes or takes a float: literals, true division, the type, and modules that are made of them."""
    remedy = "use integers and domain.fixed"
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, float | complex):
            yield at(path, node.lineno, f"float {node.value}; {remedy}")
        elif isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
            yield at(path, node.lineno, f"true division; use // or domain.fixed, {remedy}")
        elif isinstance(node, ast.Name) and node.id in {"float", "complex", "round"}:
            yield at(path, node.lineno, f"{node.id}; {remedy}")
        for name in imported(node):
            if name in {"math", "cmath", "statistics", "decimal", "fractions", "numpy"}:
                yield at(path, node.lineno, f"import of {name}; {remedy}")  # type: ignore[attr-defined]


def imported(node: ast.AST) -> Iterator[str]:
    """Yield the top-level packages that `node` imports, if it is an import."""
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
        yield node.module.partition(".")[0]


def impure_imports(path: Path, tree: ast.Module) -> Iterator[str]:
    """Find imports that pure code may not have."""
    for node in ast.walk(tree):
        for name in imported(node):
            if name not in DOMAIN_MAY_IMPORT:
                remedy = (
                    "do it in an adapter and pass in the value, or add the module to DOMAIN_MAY_IMPORT if it is pure"
                )
                yield at(path, node.lineno, f"domain imports {name}; {remedy}")  # type: ignore[attr-defined]


def untold_tests(path: Path, tree: ast.Module) -> Iterator[str]:
    """Find tests whose name promises nothing, fake our own code, or wait by the clock."""
    inherited = {
        method for found in ast.walk(tree) if isinstance(found, ast.ClassDef) and found.bases for method in found.body
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and re.match(r"test(_|$)", node.name):
            if node.name.count("_") < 3 and node not in inherited:
                yield at(path, node.lineno, f"{node.name} says too little; name the test after what must hold")
        elif isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node).rpartition(".")[2] in MOCKS:
            yield at(path, node.lineno, f"{ast.unparse(node)}; use adapters/memory or a real part")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"time.sleep", "asyncio.sleep"}:
            wait = node.args[0] if node.args else None
            if not (isinstance(wait, ast.Constant) and wait.value == 0):
                yield at(path, node.lineno, "a sleep; wait for what is meant: tests.support.waiting.until")


def tracked_files() -> list[Path]:
    """Return every file that git tracks; without git, every file that is not hidden or made."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0 and listing.stdout:
        paths = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if not any(part.startswith((".", "__")) for part in path.parts)]
    return sorted(path for path in paths if path.is_file())


def outside_names(path: Path, text: str) -> Iterator[str]:
    """Find paths of one machine, package registries, and texts that a reader of this repository does not have."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in _OUTSIDE.finditer(line):
            yield at(
                path, number, f"{found[0]!r} is not of this repository; take it out, or copy what is needed in here"
            )


def bad_fragment(path: Path) -> Iterator[str]:
    """Find a changelog fragment that towncrier would drop or print badly."""
    text = path.read_text()
    if not _FRAGMENT.fullmatch(path.name):
        yield at(path, 1, "name it <issue>.<short-name>.<breaking|added|fixed>.md")
    if not text.strip().endswith((".", "`", ")")) or "\n\n" in text.strip() or text.startswith(("#", "-", "*")):
        yield at(path, 1, "write one or two plain sentences for users, in one paragraph, without heading or bullet")


def dead_links(path: Path) -> Iterator[str]:
    """Find links of a page to files that are not there."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for target in re.findall(r"\]\(([^)#\s]+)", line):
            if "://" not in target and not (path.parent / target).exists():
                yield at(path, number, f"link to {target}, which does not exist; mend the link or write the page")


def origins(directory: Path) -> list[Path]:
    """Return where a clean interpreter, started in `directory`, finds our packages."""
    code = "import sys, importlib.util as u; [print(u.find_spec(n).origin) for n in sys.argv[1:]]"
    command = [sys.executable, "-I", "-c", code, *PACKAGES]
    found = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    return [Path(line).parent for line in found.stdout.splitlines()]
