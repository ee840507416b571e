"""`status`, `decisions`, `set` and `load` against real servers."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cli_cases import headway
from control_server import AT, Control, controlling, decision, measured, pool, status, worded
from rich.console import Console

from headway.planning.documents import StatusDocument
from headway.planning.records import DecisionRecord
from headway.words import clock
from headway_cli import decisions, ownership
from headway_cli.control import ControlClient
from headway_cli.decisions import DecisionTable, roles_of
from headway_cli.status import status_view
from interp import load_profile

sys.path.append(str(Path(__file__).parents[1] / "loadgen"))
from openai_server import never, script, serving, stream

from tests.patience import PATIENCE_S, until
from tests.ports import free_port

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
    return f"http://127.0.0.1:{free_port()}"


def shown(**changes: Any) -> str:
    """What `status` prints of such a document, the spaces of its tables taken out."""
    out = Console(width=200, file=StringIO())
    out.print(status_view(StatusDocument.model_validate(worded(status(**changes))), "http://here"))
    return "\n".join(" ".join(line.split()) for line in out.file.getvalue().splitlines())


def last(**changes: Any) -> dict[str, Any]:
    return {"last_decision": status()["last_decision"] | changes}


BURNING = {"state": "burning", "text": "Burning: 31 % of requests have missed their SLO", "well": False}
EDIT = {"role": "decode", "found": 3, "ours": 8, "seen_at": AT, "by": "kubectl-edit", "changed_at": AT}
RIVALS = ["HorizontalPodAutoscaler llm/a scales Deployment llm/b too"]
LACKING = {"decode": {"replicas": 3, "revoked": 0, "since_s": AT, "ready": 1, "lost_share": 0.5}}
CUT = {"address": "10.0.0.3", "node": "n3", "state": "unreachable", "since_s": AT, "back_s": None}
BACK = {"address": "10.0.0.4", "node": "n4", "state": "back", "since_s": AT, "back_s": AT + 70, "ran": []}
SINCE = {"prefill": AT, "decode": AT}
REFINED = {"version": 143, "cells": 6, "since": SINCE, "factors": {"prefill": 1.42, "decode": 0.99}}
FORECAST = {"requests": 60.0, "requests_low": 40.0, "requests_high": 81.0}
SLOW = {"decode": {"ready": 3, "slowness": [2.0], "worth": [0.2], "lacking": 1}}
ILL = {"Planner": {"ok": True, "detail": ""}, "MetricCollector": {"ok": False, "detail": "no data"}}
UNWELL = status()["planner"] | {"state": "holding", "reason": "metrics are stale", "failed_ticks": 2}
ANSWERS = (
    ({"status": "dry_run", "detail": {}}, "decode 4; dry run: nothing is set"),
    ({"status": "refused", "detail": {"error": "nobody has reported"}}, "; refused: nobody has reported"),
)
CHAT = {
    "requests": 40,
    "judged": 40,
    "attainment": 0.9,
    "ttft_s": {"p50": 0.2, "p95": 0.81, "p99": 1.2},
    "itl_s": {"p50": 0.011, "p95": 0.016, "p99": 0.018},
}
CLASSES = status()["slo"] | {"classes": {"chat": {"ttft_ms": 500.0, "attainment": 0.98}}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"verdict": BURNING}, f"here\n{BURNING['text']}\n"),
        ({}, "\nSIMULATED engine"),
        ({}, "\nprefill 2 0 2 0 "),
        ({}, "\ndecode 4 1 3 0 "),
        ({}, "96 % in the last interval, 98.7 % in total, target 95 %"),
        ({}, "Decision #7, 90 s ago: prefill 2, decode 4; reached after 6.3 s"),
        ({}, "Why decode 3 → 4: more load"),
        ({}, "Components all healthy: Planner, Predictor"),
        ({}, "Limits prefill 1 to 6 replicas of 1 GPU, decode 1 to 6 replicas of 1 GPU"),
        ({"seen_at": {"metrics": AT + 90.0, "profile": AT}}, "Input freshness metrics 10 s, profile 100 s"),
        ({}, "reference policy, predictor kalman, every 10 s, 8 ticks"),
        ({"planner": status()["planner"] | {"predictor": None}}, "reference policy, every 10 s, 8 ticks"),
        ({"components": ILL}, "\nComponents MetricCollector: no data"),
        ({"planner": UNWELL}, "holding (metrics are stale): reference"),
        ({"planner": UNWELL}, "8 ticks, 2 failed ticks"),
        *(({"connector": answer}, said) for answer, said in ANSWERS),
        (last(missing=LACKING), "Missing 3 decode replicas for 100 s, 50 % of the requests lost"),
        (
            {"connector": {"kind": "kubernetes", "foreign_edits": [EDIT], "rivals": RIVALS}},
            f"Others decode set to 3 (ours: 8) by kubectl-edit 100 s ago, will be reset\n{RIVALS[0]}\n",
        ),
        (
            {"measured": measured(queue_s=0.042, cached_tokens=512.0)},
            "of TTFT; 512 prompt tokens cached",
        ),
        (
            {"hosts": [CUT | {"ran": ["Decode#x1", "Predictor"]}]},
            "Hosts 10.0.0.3: unreachable for 100 s; it ran Decode#x1, Predictor",
        ),
        (
            {"hosts": [BACK]},
            "Hosts 10.0.0.4: back for 30 s, away for 70 s before; it ran nothing of Headway",
        ),
        ({"gcs_away_since_s": AT}, "Hosts Ray's GCS has not answered for 100 s"),
        (
            {"refined": REFINED},
            "Engines prefill takes 42 % longer than profiled for 100 s; the plan accounts for it\n"
            "decode as profiled",
        ),
        (
            {"slo": CLASSES, "measured": measured(classes={"chat": CHAT})},
            "\nchat 40 90 % 98 % 200/810/1,200 500 11/16/18 150",
        ),
        (
            {"slo": CLASSES, "measured": measured(classes={"chat": CHAT})},
            "\nall 52 96 % 95 % 350/900/1,100 3,000",
        ),
        (
            {"slo": CLASSES, "measured": measured(classes={"chat": {"requests": 0}})},
            "\nchat 0 n/a 98 % n/a 500 n/a 150",
        ),
        (
            last(forecast=FORECAST, forecast_error=0.0812),
            "Forecast 60 requests in the next interval, 90 % interval 40 to 81; recent error 8.1 %",
        ),
        (
            {"restarts": {"Planner": {"count": 2, "at": AT}, "Gateway": {"count": 1, "at": AT}}},
            "Restarts Planner 100 s ago (2 times so far)\nGateway 100 s ago",
        ),
        (
            {
                "changes": {"slo.ttft_ms": 250, "planner.dry_run": True},
                "changed": {"slo.ttft_ms": {"by": "alice", "at": AT}},
            },
            "Settings slo.ttft_ms 250 by alice 100 s ago\nplanner.dry_run true",
        ),
        (
            {"differing": {"decode": [{"replica": "x7", "slowness": 2.0, "since_s": AT}]}, **last(slow=SLOW)},
            "decode replicas (x7) has taken 2 times as long as the others for 100 s\n"
            "slow ones do 20 % of the work of others; keeping 1 more to make up",
        ),
    ],
)
def test_status_says(changes: dict[str, Any], said: str) -> None:
    assert said in shown(**changes)


def test_what_is_not_there_has_no_line() -> None:
    names = {line.partition(" ")[0] for line in shown().splitlines()}
    assert not names & {
        "Missing",
        "Others",
        "Engines",
        "Forecast",
        "Settings",
        "Replicas",
        "Restarts",
        "Hosts",
        "Input",
    }
    assert "cached" not in shown()
    assert "all healthy" not in shown(components=ILL)


FLEET = {
    "gpus": 6,
    "deployments": [
        {
            "deployment": "chat",
            "model": "llama-3.1-8b",
            "verdict": {"state": "keeping", "text": "Keeps its promise", "well": True},
            "planner": "running",
            "pools": {"mixed": {"ready": 2, "desired": 3}},
            "requests_per_s": 1.25,
            "attainment": 0.995,
            "promised": 0.99,
            "budget": {
                "name": "chat",
                "model": "llama-3.1-8b",
                "state": "running",
                "wanted": 4,
                "holds": 3,
                "granted": 3,
                "words": "holds 3 of 4 GPUs wanted; 1 went to code (floor)",
            },
        },
        {"deployment": "code", "model": "codestral"},
    ],
}


def test_status_of_a_fleet_has_a_line_for_each_deployment(
    control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    control.fleet = FLEET
    lines = [line.strip() for line in headway(capsys, "status", "--url", control.url).out.splitlines()]

    assert lines[0] == f"2 deployments at {control.url}, 3 of 6 GPUs held"
    chat = next(line.split() for line in lines if line.startswith("chat"))
    assert " ".join(chat) == "chat keeping 1.25 99.5 % mixed 2 of 3 3 4"
    assert any(line.split()[:2] == ["code", "unknown"] for line in lines)
    assert lines[-1] == "chat holds 3 of 4 GPUs wanted; 1 went to code (floor)"


def test_status_of_one_deployment_of_a_fleet(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    control.fleet = FLEET
    ended = headway(capsys, "status", "chat", "--url", control.url)

    assert ended.out.startswith(f"{control.status['model']} at {control.url}/deployments/chat\n")


def test_the_health_of_a_fleet_is_that_of_its_worst(
    control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = FLEET["deployments"][0]
    burning = {**chat, "deployment": "code", "verdict": {"state": "burning", "text": "Misses", "well": False}}
    control.fleet = {**FLEET, "deployments": [chat, burning]}
    ended = headway(capsys, "status", "--check", "--url", control.url)

    assert (ended.code, ended.out) == (1, "chat: Keeps its promise\ncode: Misses\n")


def test_status_before_anything_is_known() -> None:
    nothing = dict.fromkeys(("mean", "p50", "p95", "p99", "count"))
    said = shown(
        engine={"kind": "vllm", "simulated": False, "time_scale": 1.0},
        attainment={"last_interval": None, "total": None},
        measured=measured(
            health={"status": "starting", "detail": "nothing read yet"},
            requests=None, isl_tokens=None, osl_tokens=None, ttft_s=nothing, itl_s=nothing, load={},
        ),
        last_decision=None,
        pools={"mixed": pool(running=None, waiting=None, kv_usage=None)},
    )  # fmt: skip
    assert "none yet" in said
    assert "nothing read yet" in said
    assert "SIMULATED" not in said


def test_check_is_the_exit_code_of_the_verdict(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    shows = headway(capsys, "status", "--url", control.url)
    assert (shows.code, f"llama-3.1-8b at {control.url}" in shows.out) == (0, True)
    for verdict, code in ((BURNING, 1), ({**BURNING, "state": "keeping", "well": True}, 0)):
        control.status = status(verdict=verdict)
        checked = headway(capsys, "status", "--check", "--url", control.url)
        assert (checked.code, checked.out.strip()) == (code, BURNING["text"])
    control.status = status()
    older = headway(capsys, "status", "--check", "--url", control.url)
    assert (older.code, older.err.count("\n")) == (2, 1)


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


def test_status_as_the_server_sends_it(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(headway(capsys, "status", "--url", control.url, "--json").out) == worded(control.status)


def test_the_address_and_key_of_the_environment(
    control: Control, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_URL", control.url)
    monkeypatch.setenv("HEADWAY_API_KEY", "secret")
    monkeypatch.setenv("OTHER_KEY", "other")
    assert headway(capsys, "status").code == 0
    assert headway(capsys, "status", "--api-key-env", "OTHER_KEY").code == 0
    assert list(dict.fromkeys(control.authorisations)) == ["Bearer secret", "Bearer other"]


def test_the_address_of_what_this_user_runs(
    control: Control, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert "127.0.0.1:8000" in headway(capsys, "status").complaint()
    assert not list(tmp_path.iterdir())
    with ownership.owning():
        ownership.announce(control.url, None)
        assert headway(capsys, "status").code == 0
    assert "127.0.0.1:8000" in headway(capsys, "status").complaint()


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
    assert head.split() == ["#", "time", "req/s", "SLO", "prefill", "decode", "reached", "why"]
    assert [line.split()[0] for line in lines] == ["5", "6", "7"]
    assert lines[-1].split(maxsplit=2)[2].split("  ")[0] == "5.2"
    assert re.search(r"96 % +2 +3 → 4 +6\.3 s +decode 3 → 4: more load$", lines[-1])


def test_decisions_that_changed_nothing_are_one_line(
    control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    stays = {"previous_targets": {"prefill": 2, "decode": 4}}
    rates = [
        decision(n, **stays, measured=measured(requests=40 + n, attainment=0.9 + n / 100)) for n in (2, 3)
    ]
    capped = stays | {"reasons": {"limits": ["decode: max_replicas"]}, "summary": "Needs 9; limited to 4."}
    refused = {"status": "refused", "detail": {"error": "nobody has reported"}}
    unseen = {"measured": measured(attainment=None), "summary": "No metrics (old). Needs 4."}
    control.decisions = [
        decision(1), *rates, decision(4, **capped), decision(5, **capped),
        decision(6, **stays, connector=refused), decision(7, reached_at=None, **unseen),
    ]  # fmt: skip
    _, *lines = headway(capsys, "decisions", "--url", control.url).out.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2-3", "4-5", "6", "7"]
    assert re.search(r"4\.2-4\.3 +92 % +2 +4 +– +decode 3 → 4: more load$", lines[1])
    assert lines[2].endswith("Needs 9; limited to 4.")
    assert lines[3].endswith("refused  nobody has reported")
    assert lines[4].endswith("not yet  No metrics (old). Needs 4.")


def test_one_line_for_several_decisions_has_all_their_reasons(
    control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    stays = {"previous_targets": {"prefill": 2, "decode": 4}}
    texts = ("Needs 3; keeping 4.", "Needs 4.", "Needs 2; keeping 4.", "Needs 4.")
    control.decisions = [decision(n, **stays, reasons={"summary": each}) for n, each in enumerate(texts)]
    _, line = headway(capsys, "decisions", "--url", control.url).out.splitlines()
    assert line.endswith("Needs 2; keeping 4. Then: Needs 4.")


def test_quiet_hours_are_one_line_of_a_terminal_that_follows(
    control: Control, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "console", lambda: Console(force_terminal=True, width=120))
    stays = {"previous_targets": {"prefill": 2, "decode": 4}}
    printer = decisions._Printer(decisions.DecisionLog(ControlClient(url=control.url)), why=False)
    for numbers in ((1, 2), (3,), (4,)):
        printer.show([decision(number, **(stays if number > 1 else {})) for number in numbers])
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.removeprefix("\x1b[F\x1b[K").split()[0] for line in lines] == ["1", "2", "2-3", "2-4"]
    assert [line.startswith("\x1b[F\x1b[K") for line in lines] == [False, False, True, True]


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
    assert {line.index("96 %") for line in lines} == {table.head().index("SLO")}


def test_a_decision_that_waits_behind_another_says_so() -> None:
    waiting = DecisionRecord.model_validate(decision(7, connector={"kind": "virtual", "status": "pending"}))
    (line,) = DecisionTable(roles_of([waiting])).lines([waiting])
    assert " waiting " in line


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
            "those of the server",
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
