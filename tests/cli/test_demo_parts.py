"""The demo's calculation, its history and its page; the running demo itself is in tests/ray."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_server import AT, decision

from headway.loadgen import LoadTally
from headway.planning import Role, Slo
from headway.planning.documents import PoolStatus
from headway.planning.records import DecisionRecord
from headway.workload import open_trace
from headway_cli.demo_plan import CREST, make_demo_plan, write_load
from headway_cli.demo_record import DemoResult, History, Moment, gpu_text, live_report, read_pools
from headway_cli.demo_view import example, starts
from headway_cli.job import Job, execute
from headway_cli.report import render_result
from headway_cli.result_view import figures


def moment(time_s: float, decode: int, *, desired: int | None = None, **changes: Any) -> Moment:
    pools = {
        "prefill": {"desired": 1, "starting": 0, "ready": 1, "draining": 0},
        "decode": {"desired": desired or decode, "starting": 0, "ready": decode, "draining": 0},
    }
    values = {"pools": pools, "rate_rps": 2.0, "in_flight": 3, "attainment": 0.99, "failed": 0, **changes}
    return Moment(time_s=time_s, **values)


def history(*moments: Moment) -> History:
    made = History()
    for item in moments:
        made.add(item)
    return made


def test_the_crest_needs_several_replicas_and_the_trough_one() -> None:
    plan = make_demo_plan(150.0)
    crest, trough = plan.needs(plan.crest_rps), plan.needs(plan.trough_rps)
    assert crest == pytest.approx(dict(CREST), rel=0.01)
    assert {role: int(np.ceil(need)) for role, need in crest.items()} == {Role.PREFILL: 3, Role.DECODE: 4}
    assert all(need < 1 for need in trough.values())


def test_a_full_batch_meets_the_slo() -> None:
    plan = make_demo_plan(150.0)
    batch, context = plan.config.engine.max_batch_size, float(plan.input_tokens + plan.output_tokens)
    assert batch is not None
    usage = batch * context / plan.profile.decode.table.max_kv_tokens
    assert float(plan.profile.decode.itl_s(usage, context)) < plan.config.slo.itl_s


def test_the_slo_can_be_met_by_one_idle_replica() -> None:
    plan = make_demo_plan(150.0)
    assert float(plan.profile.prefill.ttft_s(plan.input_tokens)) < plan.config.slo.ttft_s / 2
    best = plan.profile.decode.best_throughput_per_gpu(plan.config.slo.itl_s, float(plan.input_tokens))
    assert best.feasible


def test_the_load_stays_small_enough_for_two_cores() -> None:
    plan = make_demo_plan(150.0)
    assert plan.crest_rps * plan.output_tokens < 600  # tokens/s; a chunk costs well below a millisecond


def test_the_load_is_the_wave_that_was_planned(tmp_path: Path) -> None:
    plan = make_demo_plan(150.0)
    count = write_load(plan, tmp_path / "a.csv")
    write_load(plan, tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    with open_trace(str(tmp_path / "a.csv")) as trace:
        assert trace.request_count == count
        chunk = next(trace.chunks())
        assert trace.stats.isl_mean == pytest.approx(plan.input_tokens, rel=0.05)
        assert trace.stats.osl_mean == pytest.approx(plan.output_tokens, rel=0.05)
    middle = (chunk.arrival_s > 61) & (chunk.arrival_s < 81)
    assert middle.sum() / 20 == pytest.approx(plan.crest_rps, rel=0.1)


@pytest.mark.parametrize("start_up_s", [4.0, 7.0, 9.0])
def test_simulated_the_fleet_follows_and_the_slo_holds(start_up_s: float, tmp_path: Path) -> None:
    """The settings and load of the demo, in virtual time, where Ray starts replicas fast or slowly."""
    plan = make_demo_plan(150.0)
    write_load(plan, tmp_path / "demo.csv")
    simulation = plan.config.simulation.model_copy(update={"start_up_delay_s": start_up_s, "initial": "min"})
    config = plan.config.model_copy(update={"simulation": simulation})
    report = execute(Job(trace=str(tmp_path / "demo.csv"), config=config))
    desired = [series.desired for series in report.replicas.values()]
    assert [counts[0] for counts in desired] == [1, 1]
    assert all(2 <= max(counts) <= 2 * CREST[Role.DECODE] for counts in desired)
    assert sum(counts[-1] for counts in desired) < sum(max(counts) for counts in desired)
    assert report.attainment >= plan.config.slo.attainment


def test_replica_seconds_and_series() -> None:
    seen = history(moment(0, 1), moment(10, 1, desired=3), moment(15, 3), moment(25, 3), moment(30, 1))
    assert seen.replica_seconds("prefill") == 30
    assert seen.replica_seconds("decode") == 10 * 1 + 5 * 1 + 10 * 3 + 5 * 3
    series = seen.series("decode")
    assert series.time_s == [0, 10, 15, 30]
    assert series.desired == [1, 3, 3, 1]
    assert series.ready == [1, 1, 3, 1]
    assert seen.highest("decode") == 3


def test_rows_of_the_table() -> None:
    seen = history(*(moment(0.4 + step * 1.01, 1) for step in range(25)))
    times = [item.time_s for item in seen.every(10.0)]
    assert times == pytest.approx([0.4, 10.5, 20.6, 24.64])


def test_cost_beside_a_fixed_fleet() -> None:
    assert gpu_text(history(moment(0, 1), moment(10, 3), moment(20, 3))).startswith(
        "60 simulated, 75 % of the 80 of the crest's fleet all the time"
    )


def test_unknown_counts_are_none_at_all() -> None:
    assert read_pools({Role.DECODE: PoolStatus(desired=2, ready=None)}) == {
        "decode": {"desired": 2, "starting": 0, "ready": 0, "draining": 0}
    }


def test_the_example_is_a_decision_that_was_reached() -> None:
    documents = [decision(1, replicas=[]), decision(2, reached_at=None), decision(3), decision(4)]
    log = [DecisionRecord.model_validate(document) for document in documents]
    chosen = example(log)
    assert chosen is not None
    assert chosen.id == 3
    assert example(log[:2]) is None
    assert [found[0] for found in starts(log)] == [2, 3, 4]
    assert [round(found[2], 3) for found in starts(log)] == [6.2, 6.2, 6.2]


def test_the_page_takes_a_live_run(tmp_path: Path) -> None:
    import json

    plan = make_demo_plan(150.0)
    seen = history(moment(0, 1), moment(10, 1, desired=2), moment(20, 2), moment(30, 1))
    result = DemoResult(
        plan=plan,
        tally=LoadTally(Slo(ttft_s=3.0, itl_s=0.15)),
        history=seen,
        decisions=[DecisionRecord.model_validate(decision(number)) for number in range(8)],
        began_at=AT,
    )
    path = tmp_path / "live.json"
    report = live_report(result)
    path.write_text(json.dumps(report.document()))
    page = render_result(str(path))
    assert "SIMULATED" in page
    assert figures(report)["Fleet"] == "prefill 1, decode 1 to 2; 2 changes, 1 reversal"
    assert any(note.startswith("GPU-seconds: ") for note in report.notes)
