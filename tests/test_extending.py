"""The examples of docs/extending.md, installed as the page says and used by their names."""

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from actors.connectors import connector_problems, make_connector
from headway.config import Role, load_config
from headway.engine.kinds import engine_kind
from headway.planning import known
from headway.workload import TraceOptions, open_trace
from headway_cli.app import run as run_command
from headway_cli.job import Job, execute
from serve_apps.engines import make_engine
from tests.engines.engine_cases import collect, request
from tests.engines.virtual_loop import on_virtual_time, run
from tests.installed_package import installed_package

PAGE = Path(__file__).parents[1].joinpath("docs/extending.md").read_text(encoding="utf-8")
MODULES = {
    found.group(1): found.group(0).split("\n", 1)[1]
    for found in re.finditer(r"(?<=```python\n)# (\w+)\.py\n.*?(?=```)", PAGE, re.DOTALL)
}
TRACE = "steady:rate_rps=11,duration_s=120,input_tokens=500,output_tokens=50"


@pytest.fixture(autouse=True, scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The page's package, with the entry points of the page's pyproject.toml."""
    folder = tmp_path_factory.mktemp("installed")
    project = tomllib.loads(block("toml"))["project"]
    entries = "\n".join(
        f"[{group}]\n" + "\n".join(f"{name} = {target}" for name, target in names.items())
        for group, names in project["entry-points"].items()
    )
    first, *others = MODULES
    for module in others:
        (folder / f"{module}.py").write_text(MODULES[module])
    with installed_package(folder, first, MODULES[first], entries):
        yield
    for module in others:
        sys.modules.pop(module, None)


def block(language: str, after: str = "") -> str:
    """The first block of that language after those words of the page."""
    text = PAGE[PAGE.index(after) :]
    return text.split(f"```{language}\n", 1)[1].split("```", 1)[0]


def test_every_example_of_the_page_is_there():
    assert len(MODULES) == 5
    packed = tomllib.loads(block("toml"))["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    assert {f"{module}.py" for module in MODULES} == set(packed)


def test_the_policy_plans_a_simulation():
    assert "per_rate" in known()
    config = load_config(None, {"planner.policy": "per_rate", "planner.per_rate.requests_per_s": 3})
    result = execute(Job(trace=TRACE, config=config))
    assert result.policy == "per_rate"
    assert result.intervals[1].targets == {"prefill": 4, "decode": 4}


def test_the_scorer_places_the_requests_of_a_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    scorer, scored = import_module("roomy_scorer").RoomyScorer, []
    original = scorer.score
    monkeypatch.setattr(
        scorer, "score", lambda self, context: scored.append(original(self, context)) or scored[-1]
    )
    file = tmp_path / "headway.yaml"
    routing = yaml.safe_load(block("yaml", "## A scheduling plugin"))
    fleet = {"policy": "static", "static": {"mixed": 3}}
    file.write_text(yaml.safe_dump({"planner": fleet, **routing}))
    result = execute(Job(trace=TRACE, config=load_config(file)))
    assert result.routing == "roomy"
    assert result.completed == result.requests > 0
    assert len(scored) == result.requests
    assert {len(scores) for scores in scored} == {3}


def test_a_scorer_that_is_wrong_ends_the_simulation_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    scorer = import_module("roomy_scorer").RoomyScorer
    monkeypatch.setattr(scorer, "score", lambda self, context: [1.0] * (len(context.slots) - 1))
    file = tmp_path / "headway.yaml"
    file.write_text(block("yaml", "## A scheduling plugin"))
    assert run_command(["simulate", TRACE, "--config", str(file)]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(r"routing: plugin roomy-scorer: \d scores for \d candidates$", said)


@on_virtual_time
async def test_the_engine_serves_with_its_own_options(tmp_path: Path):
    file = tmp_path / "headway.yaml"
    file.write_text(block("yaml", "## An engine kind"))
    config = load_config(file)
    assert engine_kind(config).simulated
    engine = make_engine(config, Role.MIXED, "e")
    words = "".join(chunk.text for chunk in await collect(engine.decode(request(), None))).split()
    assert set(words) == {"hello"}


def test_the_connector_carries_targets_out(tmp_path: Path):
    options = {"file": str(tmp_path / "decisions.jsonl")}
    config = load_config(None, {"connector.kind": "paper", "connector.options": options})
    assert connector_problems(config) == []
    connector = make_connector(config, "headway")
    targets = {Role.PREFILL: 2, Role.DECODE: 3}
    assert run(connector.set_targets(targets, {"summary": "more"})).status == "sent"
    assert run(connector.set_targets(targets, {})).status == "unchanged"
    assert run(connector.state())[Role.DECODE].ready == 3
    line = json.loads(Path(options["file"]).read_text())
    assert line == {"targets": {"prefill": 2, "decode": 3}, "why": "more"}


def test_the_trace_format_is_recognised_and_named(tmp_path: Path):
    file = tmp_path / "trace.csv"
    file.write_text("id,start,prompt_tokens,completion_tokens\na,3,12,4\nb,4.5,13,5\n")
    for options in (TraceOptions(), TraceOptions(format="ours")):
        with open_trace(file, options) as trace:
            assert trace.request_count == 2
