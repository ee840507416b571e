"""`status`, `decisions`, `set` and `load` against real servers."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web
from cli_cases import headway
from control_server import Control, controlling, decision, measured, pool, status

from headway.planning.records import DecisionRecord
from headway.words import clock, moment
from headway_cli.decision_table import DecisionTable, roles_of
from interp import load_profile

sys.path.append(str(Path(__file__).parents[1] / "loadgen"))
from openai_server import never, script, serving, stream

from tests.patience import PATIENCE_S, until

LOAD = "steady:rate_rps=30,duration_s=1,input_tokens=20,output_tokens=5,seed=2"
PROFILE = {
    "prefill": {"isl_tokens": [100.0, 1000.0], "ttft_s": [0.02, 0.2], "throughput_per_gpu": [5000.0, 5000.0]},
    "decode": {
        "max_kv_tokens": 100_000.0,
        "kv_usage": [0.1, 0.5],
        "context_tokens": [1000.0, 1000.0],
        "itl_s": [0.01, 0.02],
        "throughput_per_gpu": [1000.0, 2500.0],
    },
    "meta": {"refined": {"version": 41, "cells": 2}},
}


@pytest.fixture
def control() -> Iterator[Control]:
    with controlling() as server:
        yield server


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADWAY_URL", "HEADWAY_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def nobody() -> str:
    """An address where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_status_shows_pools_attainment_and_why(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    ended = headway(capsys, "status", "--url", control.url)
    assert ended.code == 0, ended.err
    assert "SIMULATED" in ended.out
    rows = {line.split()[0]: line.split() for line in ended.out.splitlines() if line.split()}
    assert rows["prefill"][1:5] == ["2", "0", "2", "0"]
    assert rows["decode"][1:5] == ["4", "1", "3", "0"]
    assert "96 % in the last interval, 98.7 % in total, aim 95 %" in ended.out
    assert "#7" in ended.out
    assert "decode 3 → 4: more load" in ended.out
    assert "reached after 6.3 s" in ended.out
    assert "All parts are well" in ended.out


def test_status_begins_with_the_verdict_and_check_is_its_exit_code(
    control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    burning = {"state": "burning", "text": "Burning: 31 % of the requests miss their SLO", "well": False}
    control.status = status(verdict=burning)
    shown = headway(capsys, "status", "--url", control.url)
    assert (shown.code, shown.out.splitlines()[1].strip()) == (0, burning["text"])
    checked = headway(capsys, "status", "--check", "--url", control.url)
    assert (checked.code, checked.out.strip()) == (1, burning["text"])
    control.status = status(verdict={**burning, "state": "keeping", "well": True})
    assert headway(capsys, "status", "--check", "--url", control.url).code == 0
    control.status = status()
    older = headway(capsys, "status", "--check", "--url", control.url)
    assert (older.code, older.err.count("\n")) == (2, 1)


def test_status_names_missing_capacity(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Missing" not in headway(capsys, "status", "--url", control.url).out
    lacking = {"decode": {"replicas": 3, "revoked": 0, "since_s": 3600.0, "ready": 1, "lost_share": 0.5}}
    control.status = status(last_decision=status()["last_decision"] | {"missing": lacking})
    out = headway(capsys, "status", "--url", control.url).out
    assert re.search(r"Missing +3 decode replicas since \d\d:\d\d:\d\d, 50 % of the requests lost", out)


def test_status_names_counts_that_others_set(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    edit = {
        "role": "decode",
        "found": 3,
        "ours": 8,
        "seen_at": 3600.0,
        "by": "kubectl-edit",
        "changed_at": 3599.0,
    }
    rivals = ["HorizontalPodAutoscaler llm/a scales Deployment llm/b too"]
    control.status = status(connector={"kind": "kubernetes", "foreign_edits": [edit], "rivals": rivals})
    out = " ".join(headway(capsys, "status", "--url", control.url).out.split())
    assert re.search(
        r"Others decode is 3, not 8, by kubectl-edit at \d\d:\d\d:\d\d, to be overruled; Hori", out
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"status": "dry_run", "detail": {}}, "decode 4; dry run, nothing is set"),
        ({"status": "refused", "detail": {"error": "nobody has reported"}}, "; refused: nobody has reported"),
    ],
)
def test_status_says_why_a_decision_was_not_taken(
    answer: dict[str, object], said: str, control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    control.status = status(connector=answer)
    assert said in " ".join(headway(capsys, "status", "--url", control.url).out.split())


def test_status_shows_queueing_and_the_cache_where_engines_report_them(
    control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "cached" not in headway(capsys, "status", "--url", control.url).out
    control.status = status(measured=status()["measured"] | {"queue_s": 0.042, "cached_tokens": 512.0})
    out = " ".join(headway(capsys, "status", "--url", control.url).out.split())
    assert "of TTFT; 512 tokens of a prompt cached" in out


def test_status_names_what_is_not_well(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    control.status = status(
        components={
            "Planner": {"ok": True, "detail": ""},
            "MetricCollector": {"ok": False, "detail": "no data"},
        },
        planner=status()["planner"] | {"state": "holding", "reason": "metrics are stale", "failed_ticks": 2},
    )
    out = headway(capsys, "status", "--url", control.url).out
    assert "MetricCollector: no data" in out
    assert "holding (metrics are stale)" in out
    assert "2 failed ticks" in out
    assert "All parts" not in out


def test_status_names_hosts_that_are_cut_off_or_back_and_a_gcs_that_is_away(
    control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = {"address": "10.0.0.3", "node": "n3", "state": "unreachable", "since_s": 3600.0, "back_s": None}
    back = {"address": "10.0.0.4", "node": "n4", "state": "back", "since_s": 60.0, "back_s": 130.0, "ran": []}
    control.status = status(hosts=[cut | {"ran": ["Decode#x1", "Predictor"]}, back], gcs_away_since_s=3599.0)
    out = " ".join(headway(capsys, "status", "--url", control.url).out.split())
    time = r"\d\d:\d\d:\d\d"
    assert re.search(rf"Host 10\.0\.0\.3: unreachable since {time}; on it: Decode#x1, Predictor", out)
    assert re.search(
        rf"Host 10\.0\.0\.4: away since {time} until {time}, back now; on it: nothing of ours", out
    )
    assert re.search(rf"Ray's GCS has not answered since {time}", out)


def test_status_says_what_traffic_taught_of_the_profile(
    control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Engines" not in headway(capsys, "status", "--url", control.url).out
    since_s = 1_700_000_000.0
    factors = {"prefill": 1.42, "decode": 0.99}
    learnt = {"version": 143, "cells": 6, "factors": factors, "since": {"prefill": since_s, "decode": 1.0}}
    control.status = status(refined=learnt)
    out = " ".join(headway(capsys, "status", "--url", control.url).out.split())
    seen = f"prefill takes 42 % longer than profiled since {clock(since_s)}, the plan is corrected"
    assert f"Engines {seen}; decode as profiled" in out
    control.status = status(refined={**learnt, "factors": {"prefill": 1.0, "decode": 0.75}})
    out = " ".join(headway(capsys, "status", "--url", control.url).out.split())
    assert "prefill as profiled; decode takes 25 % less than profiled since" in out


def test_status_shows_latencies_by_class(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = {"p50": 0.2, "p95": 0.81, "p99": 1.2}
    gaps = {"p50": 0.011, "p95": 0.016, "p99": 0.018}
    chat = {"requests": 40, "judged": 40, "attainment": 0.9, "ttft_s": seconds, "itl_s": gaps}
    control.status = status(
        slo=status()["slo"] | {"classes": {"chat": {"ttft_ms": 500.0, "attainment": 0.98}}},
        measured=status()["measured"] | {"classes": {"chat": chat}},
    )
    out = headway(capsys, "status", "--url", control.url).out
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert "chat 40 90 % 98 % 200/810/1,200 500 11/16/18 150" in rows
    assert any(row.startswith("all 52 96 % 95 % 350/900/1,100 3,000") for row in rows)
    control.status["measured"]["classes"]["chat"] = {"requests": 0}
    out = headway(capsys, "status", "--url", control.url).out
    assert "chat 0 n/a 98 % n/a 500 n/a 150" in [" ".join(line.split()) for line in out.splitlines()]


def test_status_names_a_predictor_where_the_policy_asks_one(
    control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    out = headway(capsys, "status", "--url", control.url).out
    assert "reference policy, predictor kalman, every 10 s, 8 ticks" in out
    control.status = status(planner=status()["planner"] | {"policy": "headway", "predictor": None})
    assert "headway policy, every 10 s, 8 ticks" in headway(capsys, "status", "--url", control.url).out


def test_status_has_the_forecast_with_its_band(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Forecast" not in headway(capsys, "status", "--url", control.url).out
    forecast = {"requests": 60.0, "requests_low": 40.0, "requests_high": 81.0}
    control.status = status(
        last_decision=status()["last_decision"] | {"forecast": forecast, "forecast_error": 0.0812}
    )
    out = " ".join(headway(capsys, "status", "--url", control.url).out.split())
    expected = "60 requests in the next interval, 40 to 81 in 9 of 10 cases; the last ones were off by 8.1 %"
    assert f"Forecast {expected}" in out


def test_status_names_parts_that_restarted(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    at = 1_700_000_000.0
    control.status = status(restarts={"Planner": {"count": 2, "at": at}, "Gateway": {"count": 1, "at": at}})
    out = " ".join(headway(capsys, "status", "--url", control.url).out.split())
    assert f"Restarted: Planner {moment(at)} (2 times so far), Gateway {moment(at)}" in out


def test_status_names_who_changed_a_setting(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Settings" not in headway(capsys, "status", "--url", control.url).out
    at = 1_700_000_000.0
    changes = {"slo.ttft_ms": 250, "planner.dry_run": True}
    control.status = status(changes=changes, changed={"slo.ttft_ms": {"by": "alice", "at": at}})
    out = " ".join(headway(capsys, "status", "--url", control.url).out.split())
    assert f"slo.ttft_ms 250 by alice {moment(at)}; planner.dry_run true" in out


def test_status_names_replicas_that_differ(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Replicas" not in headway(capsys, "status", "--url", control.url).out
    since_s = 1_700_000_000.0
    slow = {"decode": {"ready": 3, "slowness": [2.0], "worth": [0.2], "lacking": 1}}
    control.status = status(
        differing={"decode": [{"replica": "x7", "slowness": 2.0, "since_s": since_s}]},
        last_decision=status()["last_decision"] | {"slow": slow},
    )
    out = " ".join(headway(capsys, "status", "--url", control.url).out.split())
    assert f"decode replicas (x7) takes 2 times as long as the others since {clock(since_s)}" in out
    assert "slow ones do 20 % of what others do, 1 more held for them" in out


def test_the_profile_of_a_deployment_is_exported_as_one_that_loads(
    control: Control, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    control.profile = PROFILE
    export = ("profile", "export", "--url", control.url, "--output", tmp_path / "mine")
    ended = headway(capsys, *export)
    assert ended.out == f"wrote {tmp_path}/mine: refined in 2 cells, version 41\n"
    profile = load_profile(tmp_path / "mine")
    assert profile.prefill.ttft_s(1000.0) == pytest.approx(0.2)
    assert profile.meta["refined"] == {"version": 41, "cells": 2}
    assert "mine" in headway(capsys, "profile", "show", tmp_path / "mine").out
    assert "--overwrite replaces it" in headway(capsys, *export).complaint()
    control.profile = {**PROFILE, "meta": {}}
    assert headway(capsys, *export, "--overwrite").out.endswith("mine: as measured\n")


@pytest.mark.parametrize(
    "answer", [{}, {"prefill": [], "decode": [], "meta": {}}, {"prefill": {"isl_tokens": ["x"]}}]
)
def test_what_is_no_profile_is_not_exported(
    answer: dict[str, object], control: Control, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    control.profile = answer
    export = ("profile", "export", "--url", control.url, "--output", tmp_path / "mine")
    assert "the answer is not a profile" in headway(capsys, *export).complaint()
    assert not (tmp_path / "mine").exists()


def test_status_before_anything_is_known(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = dict.fromkeys(("mean", "p50", "p95", "p99", "count"))
    control.status = status(
        engine={"kind": "vllm", "simulated": False, "time_scale": 1.0},
        attainment={"last_interval": None, "total": None},
        measured=measured(
            health={"status": "starting", "detail": "nothing read yet"},
            requests=None,
            isl_tokens=None,
            osl_tokens=None,
            ttft_s=nothing,
            itl_s=nothing,
            load={},
        ),
        last_decision=None,
        pools={"mixed": pool(running=None, waiting=None, kv_usage=None)},
    )
    ended = headway(capsys, "status", "--url", control.url)
    assert ended.code == 0, ended.err
    assert "none yet" in ended.out
    assert "nothing read yet" in ended.out
    assert "SIMULATED" not in ended.out


def test_status_as_the_server_sends_it(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(headway(capsys, "status", "--url", control.url, "--json").out) == control.status


def test_the_address_and_key_of_the_environment(
    control: Control, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_URL", control.url)
    monkeypatch.setenv("HEADWAY_API_KEY", "secret")
    monkeypatch.setenv("OTHER_KEY", "other")
    assert headway(capsys, "status").code == 0
    assert headway(capsys, "status", "--api-key-env", "OTHER_KEY").code == 0
    assert control.authorisations == ["Bearer secret", "Bearer other"]


@pytest.mark.parametrize("verb", ["status", "decisions", "offload-traces", "set"])
def test_no_server(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = nobody()
    arguments = ("slo.ttft_ms=200",) if verb == "set" else ()
    complaint = headway(capsys, verb, *arguments, "--url", url).complaint()
    assert url in complaint
    assert "refused" in complaint


def test_a_server_that_refuses(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    control.refuse = (401, "Send a valid API key")
    complaint = headway(capsys, "status", "--url", control.url).complaint()
    assert complaint.endswith("answered with status 401: Send a valid API key")


def test_not_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not an address" in headway(capsys, "status", "--url", "localhost:8000").complaint()


def test_decisions_are_a_line_each(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    head, *lines = headway(capsys, "decisions", "--url", control.url, "--limit", "3").out.splitlines()
    assert head.split() == ["#", "time", "req/s", "in", "time", "prefill", "decode", "reached", "why"]
    assert [line.split()[0] for line in lines] == ["5", "6", "7"]
    assert lines[-1].split(maxsplit=2)[2].split("  ")[0] == "5.2"
    assert re.search(r"96 % +2 +3 → 4 +6\.3 s +decode: more load$", lines[-1])


def test_decisions_that_changed_nothing_are_one_line(
    control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    stays = {"previous_targets": {"prefill": 2, "decode": 4}}
    rates = [
        decision(n, **stays, measured=measured(requests=40 + n, attainment=0.9 + n / 100)) for n in (2, 3)
    ]
    capped = stays | {"reasons": {"limits": ["decode: max_replicas"], "needs": {"decode": {"replicas": 9}}}}
    refused = {"status": "refused", "detail": {"error": "nobody has reported"}}
    control.decisions = [
        decision(1), *rates, decision(4, **capped), decision(5, **capped),
        decision(6, **stays, connector=refused), decision(7, reached_at=None),
    ]  # fmt: skip
    _, *lines = headway(capsys, "decisions", "--url", control.url).out.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2-3", "4-5", "6", "7"]
    assert re.search(r"4\.2-4\.3 +92 % +2 +4 +–$", lines[1])
    assert lines[2].endswith("decode: needs 9 (max_replicas)")
    assert lines[3].endswith("refused  nobody has reported")
    assert "not yet" in lines[4]


def test_wide_ranges_stay_in_their_columns() -> None:
    stays = {"previous_targets": {"prefill": 2, "decode": 4}}
    folds = [(7, 7, 52, 52), (10_000, 10_059, 0.333, 145), (20_000, 20_001, 12_340, 56_780)]
    records = [
        DecisionRecord.model_validate(decision(number, **stays, measured=measured(requests=requests)))
        for first, last, *rates in folds
        for number, requests in zip((first, last), rates, strict=True)
    ]
    table = DecisionTable(roles_of(records))
    lines = [line for place in (0, 2, 4) for line in table.lines(records[place : place + 2])]
    assert [line.split()[2] for line in lines] == ["5.2", "0.03-14.5", "1234-5678"]
    assert {line.index("96 %") for line in lines} == {table.head().index("in time")}


def test_a_decision_that_waits_behind_another_says_so() -> None:
    waiting = DecisionRecord.model_validate(decision(7, connector={"kind": "virtual", "status": "pending"}))
    (line,) = DecisionTable(roles_of([waiting])).lines([waiting])
    assert " waits " in line


def test_requests_that_would_wait_in_the_fleet_of_a_dry_run_do_not_wait_in_the_one_there_is() -> None:
    queueing = {"previous_targets": {"mixed": 1}, "targets": {"mixed": 2}, "pools": {}}
    queueing["reasons"] = {"needs": {"mixed": {"replicas": 2, "extra": 1}}}
    for dry_run, said in ((False, "mixed: requests wait"), (True, "requests wait in the plan's own fleet")):
        record = DecisionRecord.model_validate(decision(7, **queueing, dry_run=dry_run))
        (line,) = DecisionTable(roles_of([record])).lines([record])
        assert line.endswith(said)


def test_a_table_for_a_narrow_terminal_has_a_line_each() -> None:
    long = DecisionRecord.model_validate(
        decision(7, connector={"kind": "x", "status": "refused", "detail": {"error": "word " * 40}})
    )
    table = DecisionTable(roles_of([long]), 80)
    (line,) = table.lines([long])
    assert len(line) <= 80
    assert line.endswith("…")


def test_decisions_with_their_stories(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    out = headway(capsys, "decisions", "--url", control.url, "--limit", "2", "--why").out
    assert [line for line in out.splitlines() if line.startswith("Decision ")] == [
        f"Decision {number} at {clock(decision(number)['created_at'])}" for number in (6, 7)
    ]
    assert out.count("3.4 replicas") == 2


def test_decisions_as_json(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    lines = headway(capsys, "decisions", "--url", control.url, "--json").out.splitlines()
    assert [json.loads(line) for line in lines] == control.decisions


def test_offload_traces_are_json_lines(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    lines = headway(capsys, "offload-traces", "--url", control.url, "--limit", "3").out.splitlines()
    assert [json.loads(line) for line in lines] == control.traces[-3:]
    assert len(headway(capsys, "offload-traces", "--url", control.url).out.splitlines()) == 20


def test_no_decision_yet(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    control.status, control.decisions = status(last_decision=None), []
    ended = headway(capsys, "decisions", "--url", control.url)
    assert (ended.code, ended.out, ended.err) == (0, "", "no decision yet\n")


def test_one_decision_from_metrics_to_replicas(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    out = headway(capsys, "decisions", "--url", control.url, "--id", "7").out
    order = [
        "Decision 7",
        "52 requests (5.2/s)",
        "3.4 replicas",
        "targets     prefill 2, decode 3 → 4",
        "ray_serve: sent",
        "decode abc",
    ]
    places = [out.index(part) for part in order]
    assert places == sorted(places)
    assert "(6.2 s after the decision)" in out
    assert "reached after 6.3 s" in out


def test_a_decision_that_is_not_there(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        "There is no decision 99"
        in headway(capsys, "decisions", "--url", control.url, "--id", "99").complaint()
    )


def test_following_shows_each_new_decision_once(control: Control) -> None:
    command = [sys.executable, "-m", "headway_cli", "decisions", "--url", control.url, "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = [json.loads(process.stdout.readline())["id"] for _ in range(8)]
        control.decisions.append(decision(8))
        new = json.loads(process.stdout.readline())["id"]
        control.decisions.append(decision(9))
        newer = json.loads(process.stdout.readline())["id"]
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert first == list(range(8))
    assert (new, newer, rest) == (8, 9, "")
    assert process.returncode == 130


def test_set_sends_values_as_they_read(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = ("slo.ttft_ms=250.5", "planner.max_gpu_budget=null", "planner.dry_run=true", "model=a=b")
    assert headway(capsys, "set", *pairs, "--url", control.url).code == 0
    assert control.patches == [
        {"slo.ttft_ms": 250.5, "planner.max_gpu_budget": None, "planner.dry_run": True, "model": "a=b"}
    ]


@pytest.mark.parametrize(("pairs", "fault"), [(("slo",), "KEY=VALUE"), (("a=1", "a=2"), "given twice")])
def test_set_refuses(pairs: tuple[str, ...], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fault in headway(capsys, "set", *pairs, "--url", nobody()).complaint()


def test_load_writes_its_result_and_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, records, page = (tmp_path / name for name in ("r.json", "r.jsonl", "r.html"))
    with serving(stream()) as server:
        ended = headway(
            capsys, "load", LOAD, "--url", server.url, "--ttft-ms", "600000", "--itl-ms", "600000",
            "--json", result, "--records", records, "--report", page,
        )  # fmt: skip
    assert ended.code == 0, ended.err
    assert headway(capsys, "report", result, "--output", tmp_path / "again.html").code == 0
    assert (tmp_path / "again.html").read_text() == page.read_text()
    assert '<div class="value">100 %</div>' in page.read_text()
    document = json.loads(result.read_text())
    assert document["model"] == "test-model"
    assert (
        document["requests"] == document["completed"] == document["trace"]["requests"] == len(server.bodies)
    )
    assert document["attainment"] == 1.0
    assert document["slo"] == {"ttft_s": 600.0, "itl_s": 600.0, "attainment": 0.99}
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    assert sorted(row["index"] for row in rows) == list(range(document["requests"]))
    assert {row["outcome"] for row in rows} == {"ok"}
    assert "100 % within TTFT 600000 ms" in ended.out


@pytest.mark.parametrize(
    ("promise", "flags", "slo", "noted"),
    [
        (
            {"ttft_ms": 6000.0, "itl_ms": 190.0, "attainment": 0.95},
            ("--itl-ms", "50"),
            {"ttft_s": 6.0, "itl_s": 0.05, "attainment": 0.95},
            "those that the server promises",
        ),
        (None, (), {"ttft_s": 0.3, "itl_s": 0.02, "attainment": 0.99}, "Headway's defaults"),
    ],
)
def test_load_judges_by_the_servers_promise_where_it_has_one(
    promise: dict[str, float] | None,
    flags: tuple[str, ...],
    slo: dict[str, float],
    noted: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def told(request: web.Request) -> web.Response:
        return web.json_response({"slo": promise})

    with serving(stream(), (web.get("/v1/control/status", told),)) as server:
        document = json.loads(headway(capsys, "load", LOAD, "--url", server.url, "--json", "-", *flags).out)
    assert document["slo"] == pytest.approx(slo)
    assert noted in document["notes"][-1]


def test_load_of_a_server_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(script(b'{"error": {"message": "no replica"}}', status=503)) as server:
        ended = headway(capsys, "load", LOAD, "--url", server.url, "--json", "-")
    document = json.loads(ended.out)
    assert ended.code == 3
    count = document["requests"]
    last = f"headway: none of {count} requests to {document['url']} was served: {count} http 503"
    assert ended.err.splitlines()[-1] == last
    assert document["attainment"] == 0.0
    assert document["failed"] == document["requests"]
    assert list(document["outcomes"]) == ["http 503"]
    assert "503: no replica" in ended.err


def test_load_takes_the_key_and_the_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_API_KEY", "secret")
    with serving(stream()) as server:
        headway(capsys, "load", LOAD, "--url", f"{server.url}/v1", "--model", "other", "--prompt", "text")
    assert {body["model"] for body in server.bodies} == {"other"}
    assert all(isinstance(body["prompt"], str) for body in server.bodies)
    assert server.headers[0]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (("--prompt", "words"), "neither tokens nor text"),
        (("--time-scale", "0"), "time-scale must be above 0"),
        (("--ttft-ms", "-1"), "slo.ttft_ms"),
        (("--config", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_load_refuses(flags: tuple[str, str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fault in headway(capsys, "load", LOAD, "--url", nobody(), "--model", "m", *flags).complaint()


def test_load_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    url = nobody()
    assert f"{url}/v1/models" in headway(capsys, "load", LOAD, "--url", url).complaint()


def test_an_interrupted_load_tells_what_it_has(tmp_path: Path) -> None:
    result = tmp_path / "r.json"
    endless = LOAD.replace("duration_s=1", "duration_s=3600")
    with serving(never) as server:
        command = [
            sys.executable,
            "-m",
            "headway_cli",
            "load",
            endless,
            "--url",
            server.url,
            "--json",
            str(result),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            until(lambda: len(server.bodies) >= 5)
            os.kill(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "Traceback" not in out + err
    document = json.loads(result.read_text())
    assert document["requests"] == 0
    assert document["unfinished"] >= 5
    assert "cut off by the interrupt" in out
