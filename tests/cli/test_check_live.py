"""`headway check` on the sections that only live operation reads."""

import json
from pathlib import Path

import pytest
from cli_cases import headway

from actors.collector.interval import Health, HealthStatus, Latency, Measured
from headway.config import HeadwayConfig
from headway_cli.check import Found
from tests.patience import PATIENCE_S
from tests.vllm_double import vllm_doubles


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADWAY_API_KEYS", "DYN_PARENT_DGD_K8S_NAME"):
        monkeypatch.delenv(name, raising=False)


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("vllm", "fault"),
    [
        ("{model: /nowhere/model}", "engine.vllm.model: /nowhere/model: there is no such directory"),
        ("{model: model}", "model: holds no weights"),
        ("{args: {max_num_seqs: 3}}", "engine.vllm.args: max_num_seqs: is set by engine.max_batch_size"),
    ],
)
def test_a_model_that_vllm_could_not_load(
    vllm: str,
    fault: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serve_apps.engines.vllm.loading.find_spec", lambda name: object())
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["X"]}')
    path = written(tmp_path, f"engine: {{kind: vllm, vllm: {vllm}}}")
    complaint = headway(capsys, "check", path).complaint()
    assert complaint.startswith(str(path))
    assert fault in complaint


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "gateway: {api_keys: [k]}\nrouting: {tenants: {k: {}}}",
            "routing.tenants: 'k': no key has that name",
        ),
        ("connector: {kind: kubernetes, kubernetes: {target: kuberay}}", "connector.kubernetes.name"),
        ("metrics: {source: prometheus}", "needs a url"),
    ],
)
def test_what_up_would_refuse(
    text: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    complaint = headway(capsys, "check", written(tmp_path, text)).complaint()
    assert complaint.startswith(str(tmp_path / "mine.yaml"))
    assert fault in complaint


def test_every_key_that_is_wrong_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "slo: {ttft_ms: -1, itl_mss: 4}\npools: {prefill: {max_replicas: 0}}\nconnector: {kind: virtul}"
    path = written(tmp_path, text)
    ended = headway(capsys, "check", path)
    assert (ended.code, ended.out) == (2, "")
    lines = ended.err.splitlines()
    assert lines[0] == f"headway: {path}: slo.itl_mss: unknown key; did you mean 'itl_ms'?"
    keys = [line.removeprefix(f"headway: {path}: ").split(":")[0] for line in lines]
    assert sorted(keys) == ["connector.kind", "pools.prefill.max_replicas", "slo.itl_mss", "slo.ttft_ms"]
    # Other verbs have one line, which says how many more there are.
    assert "(and 3 more)" in headway(capsys, "simulate", "none.csv", "--config", path).complaint()


@pytest.mark.parametrize(
    ("window", "fault"),
    [
        ("{days: [mon, moon], min_replicas: 2}", "schedule.0.days.1: input should be 'mon', 'tue'"),
        ("{days: [], min_replicas: 2}", "schedule.0: days is empty"),
        ("{from: 25:00, min_replicas: 2}", "schedule.0.from: should be a time from 00:00 to 24:00, such as"),
        ("{to: 8, min_replicas: 2}", "schedule.0.to: input should be a valid string, not 8"),
        ("{from: 8:00, to: 08:00, min_replicas: 2}", "schedule.0: from 08:00 to 08:00 is no time"),
        ("{from: 8:00, to: 9:00}", "schedule.0: needs min_replicas or max_replicas"),
        ("{min_replicas: 5, max_replicas: 4}", ": schedule.0: min_replicas 5 is above max_replicas 4"),
        ("{min_replicas: 9}", "min_replicas 9 is above max_replicas 8, one of them the pool's own"),
        ("{min_replicas: 0}", "schedule.0: min_replicas 0 needs it to be 0 for the pool, too"),
        ("{max_replicas: 0}", "schedule.0.max_replicas: input should be greater than 0"),
        ("{form: 8:00, min_replicas: 2}", "schedule.0.form: unknown key; did you mean 'from'?"),
    ],
)
def test_a_schedule_that_is_none(
    window: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, f"pools: {{decode: {{max_replicas: 8, schedule: [{window}]}}}}")
    complaint = headway(capsys, "check", path).complaint()
    assert complaint.startswith(f"{path}: pools.decode")
    assert fault in complaint


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "planner: {time_zone: Europe/Berlln}",
            "planner.time_zone: 'Europe/Berlln' is not in this host's da",
        ),
        ("planner: {time_zone: ../etc}", "planner.time_zone: '../etc' is not in this host's database"),
        (
            "simulation: {begins_at: tomorrow}",
            "simulation.begins_at: input should be a valid datetime or date",
        ),
        (
            "planner: {max_gpu_budget: 4}\npools: {decode: {schedule: [{min_replicas: 6}]}}",
            "planner.max_gpu_budget: 4 GPUs do not hold the min_replicas of all pools at the highest of th",
        ),
    ],
)
def test_zones_dates_and_budgets_that_no_schedule_can_go_by(
    text: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fault in headway(capsys, "check", written(tmp_path, text)).complaint()


def test_everything_that_up_would_refuse_has_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "engine: {profile: nowhere}\ngateway: {host: 0.0.0.0, tokenizer: no.json}\n"
        "connector: {kind: kubernetes}\npools: {decode: {min_replicas: 0}}"
    )
    ended = headway(capsys, "check", written(tmp_path, text))
    assert ended.code == 2
    named = (
        "engine.profile",
        "gateway.host: 0.0.0.0 is open to other machines",
        "gateway.tokenizer",
        "connector.kubernetes.name",
        "pools.decode.min_replicas",
    )
    lines = ended.err.splitlines()
    assert len(lines) == len(named)
    for key in named:
        assert sum(key in line for line in lines) == 1


@pytest.mark.parametrize(
    "text",
    [
        "gateway: {host: 0.0.0.0, api_keys: [secret]}",
        "gateway: {host: 0.0.0.0, allow_anonymous: true}",
        "connector: {kind: kubernetes, kubernetes: {target: kuberay, name: mine}}",
        "connector: {kind: virtual}",
        "metrics: {source: prometheus, url: 'http://127.0.0.1:9090'}",
    ],
)
def test_what_up_takes(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = headway(capsys, "check", written(tmp_path, text))
    assert ended.code == 0, ended.err
    assert "secret" not in ended.out + ended.err


FLEET = """
metrics: {source: prometheus, url: 'http://127.0.0.1:9', preset: vllm}
connector: {kind: virtual}
pools: {mixed: {}}
"""


def test_the_fleet_of_others_is_for_attach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "use headway attach" in headway(capsys, "check", written(tmp_path, FLEET)).complaint()


def test_check_attach_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = headway(capsys, "check", "--attach", written(tmp_path, FLEET))
    assert ended.code == 2
    assert (
        "source: prometheus http://127.0.0.1:9, preset vllm: Prometheus at http://127.0.0.1:9: " in ended.out
    )
    assert "target: virtual: an outside system fetches decisions" in ended.out
    assert "pools, profile estimated\n" in ended.out
    assert "profile: none given, estimated for llama-3.1-8b, 8B on GPUs of unknown type" in ended.out
    assert ended.err.endswith("mine.yaml: source cannot be used now\n")


def test_check_attach_names_engines_that_do_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway_cli.check.LOOK_S", 0.1)
    with vllm_doubles(1, "m") as (server,):
        engines = {"mixed": {"addresses": [server, "127.0.0.1:9"]}}
        text = json.dumps(
            {
                "model": "m",
                "metrics": {
                    "source": "engines",
                    "preset": "vllm",
                    "engines": engines,
                    "timeout_s": PATIENCE_S,
                },
                "connector": {"kind": "virtual"},
                "pools": {"mixed": {}},
            }
        )
        out = headway(capsys, "check", "--attach", written(tmp_path, text)).out
        assert "1 of 2 engines answer" in out
        assert "; engines: 1 mixed; not read: http://127.0.0.1:9/metrics: ClientConnectorError" in out
        assert "\n  ttft: vllm:time_to_first_token_seconds, 1 series\n" in out
        assert "\nprofile: none given, estimated for /models/Llama-3.1-8B, 8B on GPUs of unknown type" in out
        kserve = headway(capsys, "check", "--attach", written(tmp_path, text.replace('"vllm"', '"kserve"')))
        assert "no `kserve_vllm:num_requests_running`; " in kserve.out
        assert " series begin with `vllm:`: preset vllm\n" in kserve.out
        other = headway(
            capsys, "check", "--attach", written(tmp_path, text.replace('"model": "m"', '"model": "M"'))
        )
        assert "no series of the model M, only of m\n" in other.out


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            "pools: {mixed: {max_replicas: 2}}",
            "3 mixed replicas are running and pools.mixed.max_replicas is 2: the first",
        ),
        (
            "pools: {mixed: {gpus_per_replica: 2}}\nplanner: {max_gpu_budget: 5}",
            "the running replicas use 6 GPUs and planner.max_gpu_budget is 5: the first decision",
        ),
        (
            "pools: {mixed: {}}\nslo: {ttft_ms: 0.5}",
            "slo.ttft_ms 0.5: unreachable, even when idle: by the profile a prompt of 1,000 tokens takes",
        ),
        ("pools: {mixed: {}}\nslo: {itl_ms: 1}", "ms, and these engines take 20"),
    ],
)
def test_check_attach_names_what_the_first_decision_would_end_and_targets_that_nothing_keeps(
    settings: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = Measured(
        start_s=0.0,
        end_s=60.0,
        health=Health(status=HealthStatus.OK),
        isl_tokens=1000.0,
        ttft_s=Latency(mean=0.15),
        itl_s=Latency(mean=0.02),
    )

    async def source(_: HeadwayConfig) -> Found:
        return Found(ok=True, text="prometheus", measured=measured, replicas={"mixed": 3})

    monkeypatch.setattr("headway_cli.check._source", source)
    fleet = FLEET.replace("pools: {mixed: {}}", settings)
    notes = [
        line
        for line in headway(capsys, "check", "--attach", written(tmp_path, fleet)).out.splitlines()
        if line.startswith("note: ")
    ]
    assert len(notes) == 1
    assert said in notes[0]
