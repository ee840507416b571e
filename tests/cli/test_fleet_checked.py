"""`headway check` of a file of several deployments: each by itself, and what they come to together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_cases import headway
from ray import serve

from headway.config import FleetConfig, load_config, load_fleet
from headway_cli import deployment
from headway_cli.deployment import Form, Say
from headway_cli.live_fleet import _fitting, _of_engines, attached_form, fleet_form

FILE = """
fleet: {gpus: 3}
pools: {mixed: {max_replicas: 4}}
deployments:
  chat: {model: llama-3.1-8b}
  code: {model: codestral, pools: {mixed: {min_replicas: 2}}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FILE)
    return path


def test_each_deployment_is_checked(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = headway(capsys, "check", file).out.splitlines()

    assert [line.partition(" policy")[0] for line in lines if ": ok" in line] == [
        f"{file}: deployments.chat: ok, headway",
        f"{file}: deployments.code: ok, headway",
    ]


class Waited(Exception):
    """The engines were waited for."""


@pytest.mark.parametrize("form", [fleet_form, attached_form])
def test_what_takes_longest_to_start_is_waited_for(
    form: Callable[[FleetConfig], Form], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(FILE.replace("codestral,", "codestral, engine: {ready_within_s: 1800},"))
    fleet = load_fleet(file)

    def waited(_: Sequence[str], within_s: float, __: Say) -> None:
        assert (within_s, fleet.common.engine.ready_within_s) == (1800.0, 300.0)
        raise Waited

    monkeypatch.setattr(deployment, "exists", lambda _: False)
    monkeypatch.setattr(deployment, "run", lambda *_: None)
    monkeypatch.setattr(deployment, "wait_until_running", waited)
    monkeypatch.setattr(serve, "start", lambda **_: None)
    built = replace(form(fleet), build=lambda _: None, members={})
    with pytest.raises(Waited):
        deployment.deploy(fleet.common, print, built)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("gpus: 3", "gpus: 2", "fleet.gpus: 2 GPUs do not hold min_replicas of all (chat 1, code 2)"),
        (
            "codestral, pools: {mixed: {min_replicas: 2}}",
            "codestral, pools: {prefill: {min_replicas: 0, gpus_per_replica: 2}, decode: {min_replicas: 0}}",
            "fleet.gpus: 3 GPUs do not hold a replica of each pool of code beside min_replicas of all "
            "(chat 1, code 3)",
        ),
        (
            "codestral, pools",
            "codestral, share: {ceiling_gpus: 1}, pools",
            "deployments.code.share.ceiling_gpus: 1 is below the 2 GPUs for a replica of each pool",
        ),
        (
            "chat: {",
            "chat: {share: {floor_gpus: 2}, ",
            "fleet.gpus: 3 GPUs do not hold floors, or min_replicas where these are more, of all "
            "(chat 2, code 2)",
        ),
        ("chat: {", "headway: {", "deployments.headway: is the name of the gateway's application, too"),
        (
            "model: codestral",
            "model: codestral, engine: {kind: external}",
            "deployments.code: engine.kind: external engines are not started here",
        ),
        ("model: codestral", "model: codestral, planner: {policy: reference}", "deployments.code: "),
    ],
)
def test_what_up_would_refuse_is_one_line(
    file: Path, old: str, new: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(FILE.replace(old, new, 1))
    complaint = headway(capsys, "check", file).complaint()

    assert complaint.startswith(f"{file}: {fault}")
    assert "\n" not in complaint


ATTACHED = """
pools: {mixed: {max_replicas: 4}}
metrics: {source: engines, preset: vllm}
connector: {kind: kubernetes, kubernetes: {target: scale}}
deployments:
  chat:
    model: chat-8b
    metrics: {engines: {mixed: {addresses: ["127.0.0.1:9"]}}}
    connector: {kubernetes: {objects: {mixed: {name: chat}}}}
  code:
    model: code-8b
    metrics: {engines: {mixed: {addresses: ["127.0.0.1:10"]}}}
    connector: {kubernetes: {objects: {mixed: {name: code}}}}
"""


def test_an_attached_fleet_is_looked_at_deployment_by_deployment(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(ATTACHED.replace("kind: kubernetes, kubernetes: {target: scale}", "kind: virtual"))
    said = headway(capsys, "check", "--attach", file)

    shown = [line for line in said.out.splitlines() if line.startswith(str(file))]
    assert [line.partition(": ok")[0] for line in shown] == [
        f"{file}: deployments.{name}" for name in ("chat", "code")
    ]
    for name in ("chat", "code"):
        assert f"{file}: deployments.{name}: source cannot be used now" in said.err


def test_two_deployments_do_not_scale_one_object(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(ATTACHED.replace("name: code}", "name: chat}"))
    complaint = headway(capsys, "attach", file).complaint()

    assert complaint.startswith(f"{file}: deployments.code.connector: scales what chat does")


def test_no_engine_starts_anew_for_where_its_deployment_spills_over_to(file: Path) -> None:
    chat = load_fleet(file).deployments["chat"]

    assert _of_engines(chat) == _of_engines(chat.model_copy(update={"spillover": "more"}))
    assert _of_engines(chat) != _of_engines(chat.model_copy(update={"model": "llama-3.1-70b"}))


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ({"engine.start_up_s": 9}, 3),
        ({"pools.mixed.gpus_per_replica": 2}, 1),
        ({"pools.mixed.gpus_per_replica": 4}, 0),
        ({"engine.profile": "llama-3.1-70b_h100_tp4"}, 0),
    ],
)
def test_changed_engines_take_no_more_gpus_than_there_were(changed: Mapping[str, Any], kept: int) -> None:
    before = {"engine.profile": "llama-3.1-8b_h100_tp1", "pools": {"mixed": {"max_replicas": 8}}}
    old, new = load_config(None, before), load_config(None, before | changed)
    assert _fitting(old, new, {"Mixed": 3}) == {"Mixed": kept}
    assert _fitting(new, old, {"Mixed": 3}) == {"Mixed": 3}
    assert _fitting(None, new, {"Mixed": 3}) == {}
    rest = load_config(None, before | {"pools.mixed.min_replicas": 0, "pools.mixed.sleepers": 1})
    assert _fitting(rest, rest, {"Mixed": 1}) == {"Mixed": 0}
    other = new.model_copy(update={"fleet": new.fleet.model_copy(update={"gpu_type": "L20"})})
    assert _fitting(old, other, {"Mixed": 3}) == {}
