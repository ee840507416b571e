"""The packages that pyproject.toml ships, said there alone."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PYPROJECT: Mapping[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES: tuple[str, ...] = tuple(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
