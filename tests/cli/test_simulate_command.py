"""`headway simulate`: the JSON contract, reproducible bytes, whole files, and what the table says."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from cli_cases import LOAD, headway, trace

from tests.patience import PATIENCE_S

CONTRACT = {
    *("requests", "completed", "shed", "failed", "attainment", "goodput_rps", "gpu_hours", "policy", "seed"),
    *("ttft_s", "itl_s", "tpot_s", "e2e_s", "scale_events", "direction_reversals", "replicas"),
    *("fluid_bound_gpu_hours", "simulated_s", "wall_s"),
}


SIGNALLED = """
import os, sys
module, number = sys.argv[1:]
class Finder:
    def find_spec(self, name, *rest):
        if name == module:
            os.kill(os.getpid(), int(number))
sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["report", "none.json"]
from headway_cli.main import main
main()
"""
"""`headway report none.json` in a process that signals itself when it imports a module."""

FAST = ("--adjustment-interval", "60", "--start-up-delay", "20")


def simulated(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    """The document that a simulation writes to standard output."""
    ended = headway(capsys, "simulate", *arguments, "--json", "-")
    assert ended.code == 0, ended.err
    document: dict[str, Any] = json.loads(ended.out, parse_constant=pytest.fail)
    return document


def test_json_has_the_keys_that_others_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    document = simulated(capsys, LOAD, *FAST)
    assert set(document) >= CONTRACT
    for latency in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
        quantiles = document[latency]
        assert set(quantiles) == {"mean", "p50", "p90", "p95", "p99"}
        assert 0 < quantiles["p50"] <= quantiles["p90"] <= quantiles["p95"] <= quantiles["p99"]
    for series in document["replicas"].values():
        assert {"desired", "starting", "ready", "draining"} < set(series)
        assert len({len(column) for column in series.values()}) == 1
    assert document["requests"] == document["completed"] + document["failed"] + document["shed"]
    assert document["requests"] == document["trace"]["requests"]
    assert 0 <= document["attainment"] <= document["attainable"] <= 1
    assert all(interval["reasons"]["summary"] for interval in document["intervals"][:-1])


def test_gpu_hours_are_at_least_the_fluid_bound_when_the_slo_is_met(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = simulated(capsys, LOAD, "--static", "prefill=2,decode=2")
    assert document["attainment"] > 0.99
    assert document["fluid_bound_ratio"] > 1
    assert document["gpu_hours"] == pytest.approx(4 * document["simulated_s"] / 3600, rel=1e-9)


def test_the_same_command_twice_writes_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("simulate", LOAD, *FAST, "--start-up-cv", "0.5", "--routing", "random", "--seed", "7")
    written = []
    for name in ("first", "second"):
        path, page = tmp_path / f"{name}.json", tmp_path / f"{name}.html"
        assert headway(capsys, *command, "--json", path, "--report", page).code == 0
        lines = [line for line in path.read_bytes().splitlines() if b'"wall_s"' not in line]
        written.append((lines, page.read_bytes()))
    assert written[0] == written[1]


def test_flags_override_the_settings_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("slo: {ttft_ms: 123, itl_ms: 45}\nplanner: {policy: threshold}\n", encoding="utf-8")
    document = simulated(capsys, LOAD, "--config", path, "--ttft-ms", "321")
    assert document["policy"] == "threshold"
    assert document["slo"]["ttft_s"] == pytest.approx(0.321)
    assert document["slo"]["itl_s"] == pytest.approx(0.045)


def test_first_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    def first(*flags: str) -> dict[str, int]:
        replicas = simulated(capsys, LOAD, "--duration", "100", *flags)["replicas"]
        return {role: series["ready"][0] for role, series in replicas.items()}

    assert first("--initial", "min") == {"prefill": 1, "decode": 1}
    assert first("--initial", "prefill=2,decode=3") == {"prefill": 2, "decode": 3}
    assert first("--static", "prefill=4,decode=2") == {"prefill": 4, "decode": 2}
    sized = first("--rate-scale", "40", "--max-replicas", "50")
    assert sized == first("--rate-scale", "40", "--max-replicas", "50", "--policy", "threshold")
    assert sized["prefill"] >= 3
    assert first("--rate-scale", "40", "--max-gpu-budget", "2", "--policy", "threshold") != sized


def test_one_mixed_pool(capsys: pytest.CaptureFixture[str]) -> None:
    document = simulated(capsys, LOAD, "--aggregated", "--policy", "threshold")
    assert set(document["replicas"]) == {"mixed"}
    assert document["completed"] == document["requests"]


def test_a_fixed_fleet_of_mixed_replicas_says_that_there_is_one_pool(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = simulated(capsys, LOAD, "--static", "mixed=2")
    assert {role: series["ready"][0] for role, series in document["replicas"].items()} == {"mixed": 2}


def test_the_routing_that_was_simulated_is_named_unless_it_was_chosen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (said,) = [note for note in simulated(capsys, LOAD)["notes"] if note.startswith("routing:")]
    assert said.startswith("routing: least_load")
    assert said.endswith("routing.profile: slo (--routing slo)")
    chosen = simulated(capsys, LOAD, "--routing", "least_load")
    assert not [note for note in chosen["notes"] if note.startswith("routing:")]


def test_crashed_replica_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--static", "prefill=2,decode=2", "--start-up-delay", "30")
    series = simulated(capsys, LOAD, *flags, "--crash", "decode@100")["replicas"]["decode"]
    assert min(series["ready"]) == 1
    assert series["ready"][-1] == 2


def test_predictors_see_the_warm_up_trace(capsys: pytest.CaptureFixture[str]) -> None:
    flags = (*FAST, "--policy", "reference")
    cold = simulated(capsys, LOAD, *flags)
    warm = simulated(
        capsys, LOAD, *flags, "--load-predictor-warmup-trace", "steady:rate_rps=4,duration_s=900"
    )
    assert cold["intervals"][0]["forecast"]["source"]["requests"].startswith("constant (warm-up")
    assert warm["intervals"][0]["forecast"]["source"]["requests"] == "kalman"


def test_the_default_policy_begins_with_the_warm_up_trace(capsys: pytest.CaptureFixture[str]) -> None:
    past = ("--load-predictor-warmup-trace", "steady:rate_rps=4,duration_s=900")
    warm = simulated(capsys, LOAD, *past)
    assert warm["intervals"][0]["reasons"]["needs"]["prefill"]["recalled"] == 30
    assert not [note for note in warm["notes"] if "asks for no forecast" in note]


def test_predictors_that_nothing_asks_are_said_to_change_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*flags: str) -> bool:
        return any("asks for no forecast" in note for note in simulated(capsys, LOAD, *FAST, *flags)["notes"])

    assert said("--predictor", "arima")
    assert not said()
    assert not said("--predictor", "constant", "--policy", "reference")


def test_classes_that_no_fleet_is_sized_for_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "classes.yaml"
    config.write_text(
        "slo: {ttft_ms: 500, itl_ms: 30, classes: {fast: {ttft_ms: 200}, slow: {ttft_ms: 900}}}"
    )
    asked = (LOAD, *FAST, "--config", str(config))
    notes = simulated(capsys, *asked, "--policy", "reference")["notes"]
    assert any("reference plans" in note and "tighter SLOs of fast;" in note for note in notes)
    assert not any("slo.classes" in note for note in simulated(capsys, *asked)["notes"])


def test_notes_say_what_is_wrong_with_the_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path, "0,100,10", "30,100,10", "20,100,10", "31,130000,10", "32,100,0")
    notes = simulated(capsys, path, "--ttft-ms", "1", "--itl-ms", "0.5", "--policy", "threshold")["notes"]
    text = "\n".join(notes)
    assert "prefill: TTFT of 1 ms is infeasible for 100.0 % of the requests" in text
    assert "decode: ITL of 0.5 ms is infeasible for 80.0 % of the requests" in text
    assert "the best achievable for the mean request" in text
    assert "outside the sampled contexts" in text
    assert "1 of 5 rows came out of order" in text
    assert "1 of 5 rows have no output tokens" in text
    assert "not measured end to end" in text


@pytest.mark.parametrize("pools", [[], ["--aggregated"]])
@pytest.mark.parametrize("osl", [0, 1])
def test_requests_that_end_with_their_prefill_are_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pools: list[str], osl: int
) -> None:
    rows = [f"{at},1500,{osl}" for at in range(40)]
    report = simulated(capsys, trace(tmp_path, *rows), *pools, "--policy", "threshold")
    assert (report["requests"], report["completed"]) == (40, 40)
    # By the profile a prompt of 1,500 tokens takes 31 ms.
    assert 0.02 < report["ttft_s"]["mean"] < 0.1
    assert report["itl_s"] is None or report["itl_s"]["mean"] is None


def test_prefix_blocks_are_used_or_said_to_be_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sessions.jsonl"
    row = '{{"timestamp": {at}, "input_length": 2048, "output_length": 8, "hash_ids": [1, 2, 3, 4]}}'
    path.write_text("\n".join(row.format(at=at) for at in (0, 9_000, 18_000)), encoding="utf-8")
    without = simulated(capsys, path)
    assert without["prefix_hit_rate"] == 0
    assert any("prefix blocks are not used" in note for note in without["notes"])
    cached = simulated(capsys, path, "--prefix-cache-tokens", "100000")
    assert cached["prefix_hit_rate"] == pytest.approx(2 / 3, rel=0.01)
    assert not any("prefix blocks" in note for note in cached["notes"])


def test_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    ended = headway(capsys, "simulate", LOAD, "--static", "prefill=1,decode=1")
    assert ended.code == 0
    assert ended.err == ""
    for word in (
        "static on steady",
        "Attainment",
        "fluid bound",
        "TTFT",
        "p99",
        "0 changes, 0 reversals",
    ):
        assert word in ended.out


CLASSES = """
slo:
  ttft_ms: 400
  classes:
    chat: {ttft_ms: 200, tpot_ms: 15, critical: true}
    batch: {tpot_ms: 60, share: 3}
"""


@pytest.mark.parametrize("routing", [pytest.param("slo", marks=pytest.mark.slow), "least_load"])
def test_classes_are_judged_apart_whatever_routes(
    routing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "classes.yaml"
    path.write_text(CLASSES, encoding="utf-8")
    flags = ("--config", path, "--static", "prefill=1,decode=1", "--routing", routing)
    document = simulated(capsys, LOAD, *flags)
    classes = document["classes"]
    assert set(classes) == {"chat", "batch"}
    assert sum(row["requests"] for row in classes.values()) == document["requests"]
    assert classes["batch"]["requests"] > 2 * classes["chat"]["requests"]
    assert classes["batch"]["slo"] == {"ttft_s": 0.4, "tpot_s": 0.06}
    assert ("routing_metrics" in document) is (routing == "slo")
    table = headway(capsys, "simulate", LOAD, *flags).out
    assert "chat" in table
    assert "TPOT SLO" in table


def test_a_router_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--aggregated", "--static", "mixed=2", "--routing", "prefix", "--report", tmp_path / "page.html")
    document = simulated(capsys, LOAD, *flags)
    assert document["routing"] == "prefix"
    placed = document["routing_metrics"]["placements"]
    assert sum(placed.values()) == document["requests"]
    assert all(name.startswith("prefix/") for name in placed)
    assert set(document["prefix_hits"]) == {"local", "external", "combined"}
    assert set(document["utilisation"]) == {"mixed-0", "mixed-1"}
    assert "Placed" in headway(capsys, "simulate", LOAD, *flags).out


def test_offload_traces_are_a_line_for_each_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, flags = tmp_path / "traces.jsonl", ("--aggregated", "--static", "mixed=2")
    settings = tmp_path / "offload.yaml"
    settings.write_text("routing: {offload: {mode: cost}}\n", encoding="utf-8")
    document = simulated(capsys, LOAD, *flags, "--config", settings, "--offload-traces", path)
    traces = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert sorted(int(trace["request_id"]) for trace in traces) == list(range(document["requests"]))
    assert {trace["route_class"] for trace in traces} <= {"WARM", "MEDIUM", "HEAVY_COLO", "HEAVY_P2P"}
    refused = headway(capsys, "simulate", LOAD, *flags, "--offload-traces", path).complaint()
    assert "routing.offload.mode" in refused


def test_offload_in_disaggregated_pools_is_said_to_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, why = tmp_path / "offload.yaml", "routing.offload.mode: cost is for mixed pools"
    settings.write_text("routing: {offload: {mode: cost}}\n", encoding="utf-8")
    assert f"note: {why}" in headway(capsys, "check", settings).out
    assert any(note.startswith(why) for note in simulated(capsys, LOAD, "--config", settings)["notes"])
    refused = headway(capsys, "simulate", LOAD, "--config", settings, "--offload-traces", tmp_path / "traces")
    assert "--offload-traces: offload is for mixed pools" in refused.complaint()


def test_failed_write_leaves_the_old_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.json"
    path.write_text("old", encoding="utf-8")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    said = headway(capsys, "simulate", LOAD, "--json", path).complaint()
    assert "No space left" in said
    assert path.read_text(encoding="utf-8") == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]


def test_pipe_as_output_stays_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe, received = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_text("utf-8")), daemon=True)
    reader.start()
    assert headway(capsys, "simulate", LOAD, "--json", pipe).code == 0
    reader.join(PATIENCE_S)
    assert pipe.is_fifo()
    assert json.loads(received[0])["policy"] == "headway"


def test_link_as_output_is_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "there.json")
    assert headway(capsys, "simulate", LOAD, "--json", link).code == 0
    assert link.is_symlink()
    assert json.loads((tmp_path / "there.json").read_text("utf-8"))["policy"] == "headway"


def test_duration_beyond_the_end_is_no_idle_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path, *(f"{at},100,10" for at in range(60)))
    whole, longer = simulated(capsys, path), simulated(capsys, path, "--duration", "9000")
    for key in ("gpu_hours", "goodput_rps", "simulated_s"):
        assert longer[key] == whole[key]
    assert "trace: ends after 59 s, before the 9000 s that were asked for" in longer["notes"]


def test_idle_pools_that_may_be_empty_are_and_come_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, sparse = tmp_path / "zero.yaml", tmp_path / "sparse.csv"
    settings.write_text("pools: {prefill: {min_replicas: 0}, decode: {min_replicas: 0}}", encoding="utf-8")
    rows = [f"{visit * 1800 + second},800,200" for visit in range(3) for second in range(0, 120, 3)]
    sparse.write_text("\n".join(["timestamp_s,input_tokens,output_tokens", *rows]), encoding="utf-8")
    document = simulated(capsys, sparse, "--config", settings, "--start-up-delay", "20")
    assert document["completed"] == document["requests"] == 120
    for series in document["replicas"].values():
        levels = [
            count
            for count, before in zip(series["desired"][1:], series["desired"], strict=False)
            if count != before
        ]
        assert levels == [0, 1, 0, 1]


def test_each_note_comes_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("simulation: {drain_limit_s: 0}\n", encoding="utf-8")
    notes = simulated(capsys, LOAD, "--config", path)["notes"]
    assert len([note for note in notes if "drain limit" in note]) == 1
    assert len(set(notes)) == len(notes)


@pytest.mark.parametrize(
    ("module", "number", "code", "said"),
    [
        ("headway_cli.app", signal.SIGINT, 130, "headway: interrupted\n"),
        ("headway.simulation.report", signal.SIGINT, 130, "headway: interrupted\n"),
        ("headway.simulation.report", signal.SIGTERM, 143, ""),
    ],
)
def test_signal_during_an_import(module: str, number: int, code: int, said: str) -> None:
    command = [sys.executable, "-c", SIGNALLED, module, str(int(number))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ended.returncode, ended.stderr) == (code, said)


def test_interrupt(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headway_cli.simulate.execute", interrupted)
    ended = headway(capsys, "simulate", LOAD)
    assert (ended.code, ended.err) == (130, "headway: interrupted\n")
