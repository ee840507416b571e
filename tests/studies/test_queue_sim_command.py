"""`headway queue-sim`: table, JSON, page, and input that cannot be used."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_cases import headway

EXAMPLE = Path(__file__).parents[2] / "examples" / "queue-sim.yaml"
SMALL = ("--seeds", "3", "--requests", "200")
GOOD = """\
patterns:
  a: {arrival_rps: 1, slo_s: 9}
consumers:
  - {name: gpu, count: 2, patterns: {a: {throughput_rps: 2, latency_s: 1}}}
"""

FLAGS = {
    "unknown set-up": (["--setup", "triple"], ["--setup", "triple", "ideal-single, ideal-double, multi"]),
    "missing file": (["--setup", "none.yaml"], ["none.yaml", "No such file"]),
    "no policies": (["--policies", ","], ["--policies", "nothing given"]),
    "unknown routing": (["--policies", "pull"], ["--policies", "'pull'", "least-load-pull"]),
    "unknown queue policy": (["--policies", "random-push:edf"], ["--policies", "'edf'", "slo-savable"]),
    "empty queue policy": (["--policies", "random-push:"], ["--policies", "''", "simple"]),
    "a policy twice": (["--policies", "random-push,random-push:slo"], ["random-push:slo", "twice"]),
    "no seeds": (["--seeds", "0"], ["--seeds", "between 1 and", "got 0"]),
    "no requests": (["--requests", "0"], ["--requests", "got 0"]),
    "too many requests": (["--requests", "20000000"], ["--requests", "10,000,000"]),
    "requests and duration": (["--requests", "5", "--duration", "5"], ["--duration", "--requests"]),
    "negative duration": (["--duration", "-1"], ["--duration", "above 0", "-1"]),
    "duration that is no number": (["--duration", "nan"], ["--duration", "nan"]),
    "endless duration": (["--duration", "1e9"], ["--duration", "8e+09 requests"]),
    "no consumers": (["--consumers", "0"], ["--consumers", "got 0"]),
    "consumers of two types": (["--setup", str(EXAMPLE), "--consumers", "2"], ["--consumers", "alike"]),
    "scale of zero": (["--rate-scale", "0"], ["--rate-scale", "got 0"]),
    "scale that is no number": (["--rate-scale", "nan"], ["--rate-scale", "nan"]),
    "unknown service": (["--service", "normal"], ["--service", "normal", "exponential"]),
    "unknown passing": (["--passing", "often"], ["--passing", "often", "slack"]),
    "plot on standard output": (["--plot", "-"], ["--plot", "only --json"]),
    "output without a folder": (["--plot", "no/such/page.html"], ["--plot", "no/such"]),
}

FILES = {
    "empty": ("", ["patterns", "required"]),
    "no YAML": ("patterns: [", ["line 1"]),
    "a list": ("- 1", ["keys and values"]),
    "unknown key": (GOOD + "gpus: 4\n", ["gpus: unknown key", "known here: consumers, patterns"]),
    "misspelt key": (GOOD.replace("slo_s", "slo"), ["patterns.a.slo: unknown key", "'slo_s'"]),
    "text for a number": (GOOD.replace("slo_s: 9", "slo_s: fast"), ["patterns.a.slo_s", "fast"]),
    "negative rate": (GOOD.replace("arrival_rps: 1", "arrival_rps: -1"), ["patterns.a.arrival_rps", "-1"]),
    "endless rate": (GOOD.replace("arrival_rps: 1", "arrival_rps: .inf"), ["patterns.a.arrival_rps", "inf"]),
    "true for a number": (GOOD.replace("count: 2", "count: true"), ["consumers.0.count", "number"]),
    "no consumers": (GOOD.partition("consumers")[0] + "consumers: []\n", ["consumers", "at least 1"]),
    "too many consumers": (GOOD.replace("count: 2", "count: 20000"), ["consumers.0.count", "10000"]),
    "capacity below one": (
        GOOD.replace("throughput_rps: 2", "throughput_rps: 0.5"),
        ["consumers.0.patterns.a", "capacity 0.5", "below 1"],
    ),
    "profile of no pattern": (GOOD.replace("{a: {thr", "{b: {thr"), ["profile of b", "no pattern"]),
    "pattern that nobody serves": (
        GOOD.replace("patterns:\n", "patterns:\n  z: {arrival_rps: 1, slo_s: 9}\n", 1),
        ["pattern z", "no consumer serves it"],
    ),
}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def document(capsys: pytest.CaptureFixture[str], *flags: str | Path) -> dict[str, Any]:
    ended = headway(capsys, "queue-sim", *SMALL, *flags, "--json", "-")
    assert ended.code == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


@pytest.mark.parametrize("case", FLAGS)
def test_wrong_flags(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags, words = FLAGS[case]
    said = headway(capsys, "queue-sim", *flags, "--json", "out.json")
    assert all(word in said.complaint() for word in words), said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", FILES)
def test_wrong_files(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, words = FILES[case]
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    said = headway(capsys, "queue-sim", "--setup", "mine.yaml", "--json", "out.json")
    assert said.complaint().startswith("mine.yaml: ")
    assert all(word in said.complaint() for word in words), said.err
    assert not Path("out.json").exists()


def test_output_that_is_the_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text(GOOD, encoding="utf-8")
    said = headway(capsys, "queue-sim", "--setup", "mine.yaml", "--json", "./mine.yaml")
    assert "--json" in said.complaint()
    assert (tmp_path / "mine.yaml").read_text(encoding="utf-8") == GOOD


def test_table_has_every_policy_beside_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    ended = headway(capsys, "queue-sim", "--setup", "ideal-double", *SMALL)
    assert ended.code == 0, ended.err
    rows = re.findall(r"^ ?([a-z]+-[a-z-]+) +(simple|slo|slo-savable) .* ± ", ended.out, re.M)
    assert len(set(rows)) == 12
    assert re.search(
        r"^document +bin-pack-pull = least-load-pull < least-load-push < random-push$", ended.out, re.M
    )
    assert "load 2.49: the arrivals need 4.98 GPUs, there are 2" in " ".join(ended.out.split())


def test_document_of_chosen_policies(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--policies", "least-load-pull:slo, random-push")
    labels = [row["label"] for row in found["policies"]]
    assert labels == [
        "least-load-pull:slo",
        "random-push:simple",
        "random-push:slo",
        "random-push:slo-savable",
    ]
    assert set(found["orders"]["mean_wait_s"]) == {"slo"}
    assert set(found["orders"]["slo_violations"]) == {"random-push"}
    assert found["setup"]["consumers"][0]["profiles"]["a"]["throughput_rps"] == 3.774
    for row in found["policies"]:
        assert row["requests"] == {"mean": 200, "half_width": 0}
        parts = sum(one["requests"]["mean"] for one in row["patterns"].values())
        assert parts == pytest.approx(200)
        assert 0 <= row["slo_violations"]["mean"] <= 1


def test_same_command_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for name in ("one", "two"):
        outputs = ("--json", f"{name}.json", "--plot", f"{name}.html")
        assert headway(capsys, "queue-sim", *SMALL, *outputs).code == 0
        texts.append([(tmp_path / f"{name}.{kind}").read_bytes() for kind in ("json", "html")])
    assert texts[0] == texts[1]


def test_scale_and_consumers_and_duration(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--setup", "ideal-single", "--policies", "random-push:simple")
    found = document(capsys, *flags, "--consumers", "5", "--rate-scale", "0.5")
    assert found["setup"]["load"] == pytest.approx(0.4976, abs=1e-4)
    assert found["setup"]["patterns"][0]["arrival_rps"] == 2
    assert found["documented"] is None
    ended = headway(capsys, "queue-sim", *flags, "--duration", "50", "--json", "-")
    row = json.loads(ended.out)["policies"][0]
    assert row["requests"]["mean"] == pytest.approx(400, abs=30)
    assert row["requests"]["half_width"] > 0


def test_one_seed_and_no_requests(capsys: pytest.CaptureFixture[str]) -> None:
    ended = headway(capsys, "queue-sim", "--seeds", "1", "--duration", "1e-9", "--json", "-")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert found["policies"][0]["mean_wait_s"] == {"mean": None, "half_width": None}
    assert "n/a" in ended.err
    assert any("one seed" in note for note in found["notes"])


def test_example_has_two_types_below_saturation(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--setup", EXAMPLE)
    assert {one["kind"]: one["count"] for one in found["setup"]["consumers"]} == {"small": 3, "large": 1}
    assert 0.5 < found["setup"]["load"] < 0.95
    assert found["notes"] == []


def test_the_page_escapes_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "<img src=x onerror=alert(1)>"
    text = GOOD.replace("  a: {arr", f'  "{name}": {{arr').replace("{a: {thr", f'{{"{name}": {{thr')
    (tmp_path / "mine.yaml").write_text(text.replace("name: gpu", f'name: "{name}"'), encoding="utf-8")
    ended = headway(capsys, "queue-sim", "--setup", "mine.yaml", *SMALL, "--plot", "page.html")
    assert ended.code == 0, ended.err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<img" not in page
    assert page.count("<tr>") == 2 * 13
    assert "&lt;img src=x onerror=alert(1)&gt;: wait s" in page
