"""A file with several deployments: what is common, what is a deployment's own, and what is wrong with it."""

from pathlib import Path

import pytest

from headway.config import ConfigError, is_fleet, load_config, load_fleet

FILE = """
fleet: {gpus: 28}
gateway: {port: 8001}
slo: {ttft_ms: 500, itl_ms: 25}
pools: {mixed: {max_replicas: 9}}
deployments:
  chat: {model: llama-3.1-8b, share: {priority: 1, floor_gpus: 2}}
  summaries: {model: qwen-2.5-7b, slo: {ttft_ms: 5000}, pools: {prefill: {max_replicas: 3}}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FILE)
    return path


def test_what_a_deployment_says_lies_over_what_all_have_in_common(file: Path) -> None:
    fleet = load_fleet(file, {"simulation.seed": 3})

    assert list(fleet.deployments) == ["chat", "summaries"]
    chat, summaries = fleet.deployments.values()
    assert (chat.slo.ttft_ms, summaries.slo.ttft_ms, summaries.slo.itl_ms) == (500, 5000, 25)
    assert (chat.share.priority, chat.share.floor_gpus, summaries.share.priority) == (1, 2, 0)
    assert [each.fleet.gpus for each in (fleet.common, chat, summaries)] == [28, 28, 28]
    assert [each.gateway.port for each in (fleet.common, chat, summaries)] == [8001, 8001, 8001]
    assert [each.simulation.seed for each in (chat, summaries)] == [3, 3]


def test_a_misspelt_list_of_deployments_is_hinted_at(file: Path) -> None:
    file.write_text(FILE.replace("deployments:", "deploymnts:"))

    with pytest.raises(ConfigError, match=r"deploymnts: unknown key; did you mean 'deployments'\?"):
        load_config(file)


def test_pools_of_another_form_replace_the_common_ones(file: Path) -> None:
    chat, summaries = load_fleet(file).deployments.values()

    assert {role: pool.max_replicas for role, pool in chat.pools.items()} == {"mixed": 9}
    assert {role: pool.max_replicas for role, pool in summaries.pools.items()} == {"prefill": 3, "decode": 16}


def test_common_metrics_may_be_whole_in_each_deployment_alone(file: Path) -> None:
    own = "metrics: {engines: {mixed: {dns: chat.llm.svc:8000}}}, slo: {itl_ms: 30}"
    common = "metrics: {source: engines, preset: vllm}\n" + FILE.replace(
        "share: {priority: 1", own + ", share: {priority: 1"
    )
    file.write_text(
        common.replace("  summaries: {", "  summaries: {metrics: {source: gateway, preset: headway}, ")
    )

    chat, summaries = load_fleet(file).deployments.values()

    assert (chat.metrics.source, summaries.metrics.source) == ("engines", "gateway")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("priority", "prioriy", "deployments.chat.share.prioriy: unknown key; did you mean 'priority'?"),
        ("ttft_ms: 500,", "ttft_ms: -5,", "slo.ttft_ms: input should be greater than 0, not -5"),
        ("qwen-2.5-7b", "llama-3.1-8b", "deployments.summaries.model: 'llama-3.1-8b' is that of chat, too"),
        (
            "model: qwen-2.5-7b",
            "model: qwen-2.5-7b, aliases: [llama-3.1-8b]",
            "deployments.summaries.aliases: 'llama-3.1-8b' is that of chat, too",
        ),
        (
            "model: qwen-2.5-7b",
            "model: qwen-2.5-7b, aliases: [2]",
            "deployments.summaries.aliases.0: input should be a valid string, not 2",
        ),
        ("floor_gpus: 2", "floor_gpus: 29", "fleet.gpus: 28 GPUs do not hold the floors of all (chat 29)"),
        (
            "chat:",
            "Chat Bot:",
            "deployments: 'Chat Bot' is no name: up to 40 of a-z, 0-9 and, between them, -",
        ),
        (
            "model: llama-3.1-8b,",
            "gateway: {port: 1},",
            "deployments.chat.gateway.port: is one for all deployments; it stands outside of them",
        ),
        (
            "model: llama-3.1-8b,",
            "fleet: {gpus: 3},",
            "deployments.chat.fleet: is one for all deployments; it stands outside of them",
        ),
    ],
)
def test_a_fault_is_one_line_with_its_place(file: Path, old: str, new: str, fault: str) -> None:
    file.write_text(FILE.replace(old, new, 1))

    with pytest.raises(ConfigError) as raised:
        load_fleet(file)

    assert str(raised.value) == f"{file}: {fault}"


def test_host_memory_needs_the_size_of_what_sleeps(file: Path) -> None:
    sleeping = "{model: m, pools: {mixed: {min_replicas: 0, sleepers: 1}}}"
    file.write_text(f"fleet: {{gpus: 2, host_memory: 9e9}}\ndeployments: {{a: {sleeping}}}")

    with pytest.raises(ConfigError) as raised:
        load_fleet(file)

    assert str(raised.value) == (
        f"{file}: deployments.a: engine.sleep.memory is missing: "
        "fleet.host_memory counts it for pools.mixed.sleepers"
    )


@pytest.mark.parametrize("text", ["deployments: 3", "deployments: {}", "deployments:"])
def test_a_fleet_has_deployments(file: Path, text: str) -> None:
    file.write_text(text)

    with pytest.raises(ConfigError, match="deployments: should hold a name and settings of each deployment"):
        load_fleet(file)


def test_a_file_of_a_fleet_is_none_of_one_deployment(file: Path) -> None:
    assert is_fleet(file)

    with pytest.raises(ConfigError, match="deployments: this file is of a fleet"):
        load_config(file)


SPILLING = """
fleet: {gpus: {L20: 8, H100: 4}}
deployments:
  chat: {engine: {gpu_type: L20}, spillover: more}
  more: {engine: {gpu_type: H100}}
"""


def test_a_model_may_have_several_deployments_where_one_spills_over_to_the_other(file: Path) -> None:
    file.write_text(SPILLING)

    assert load_fleet(file).before == {"more": "chat"}


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("spillover: more", "spillover: none", "chat.spillover: there is no deployment 'none'"),
        ("spillover: more", "spillover: chat", "chat.spillover: chat has the same budget, so it has room"),
        (
            "type: H100}",
            "type: H100}, spillover: chat",
            "chat.spillover: what spills over comes back to chat",
        ),
        ("type: H100}", "type: H100}, model: b", "chat.spillover: more serves 'b', not 'llama-3.1-8b'"),
        ("type: H100", "type: L20", "chat.spillover: more has the same budget, so it has room when this has"),
        ("spillover: more", "spillover: more, slo: {classes: {fast: {}}}", "more has no slo.classes.fast"),
        (", spillover: more", "", "more.model: 'llama-3.1-8b' is that of chat, too"),
        (
            "  more:",
            "  other: {engine: {gpu_type: L20}, spillover: more}\n  more:",
            "spillover: more takes what spills over from other already",
        ),
    ],
)
def test_spillover_that_leads_nowhere_is_refused(file: Path, old: str, new: str, fault: str) -> None:
    file.write_text(SPILLING.replace(old, new))

    with pytest.raises(ConfigError) as raised:
        load_fleet(file)

    assert str(raised.value).startswith(f"{file}: deployments.")
    assert fault in str(raised.value)


def test_a_deployment_alone_spills_over_to_none(file: Path) -> None:
    file.write_text("spillover: more")

    with pytest.raises(
        ConfigError, match="spillover: names another deployment, and only a fleet has several"
    ):
        load_config(file)


BY_TYPE = FILE.replace("gpus: 28", "gpus: {H100: 20, L20: 8}").replace(
    "model: qwen", "engine: {gpu_type: L20}, model: qwen"
)


def test_each_deployment_shares_the_gpus_of_its_type(file: Path) -> None:
    file.write_text(BY_TYPE.replace("pools: {mixed", "engine: {gpu_type: H100}\npools: {mixed"))
    fleet = load_fleet(file)

    assert fleet.budgets == {"H100": 20, "L20": 8}
    assert {name: each.fleet.gpus for name, each in fleet.deployments.items()} == {"chat": 20, "summaries": 8}
    assert list(fleet.of_budget("L20")) == ["summaries"]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("", "", "deployments.chat.engine.gpu_type: should be one of fleet.gpus, H100, L20, not null"),
        ("{H100: 20, L20: 8}", "{L20: none}", "fleet.gpus.L20: should be a number of GPUs, not 'none'"),
        ("{H100: 20, L20: 8}", "{}", "fleet.gpus: names no GPU type"),
        ("{H100: 20, L20: 8}", "{'': 20, L20: 8}", "fleet.gpus: '' is no name of a GPU type"),
        ("8}}", "8}, gpu_type: L20}", "fleet.gpu_type: is that of each deployment's engine.gpu_type"),
    ],
)
def test_types_that_do_not_fit_are_named(file: Path, old: str, new: str, fault: str) -> None:
    file.write_text(BY_TYPE.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_fleet(file)
    assert str(caught.value) == f"{file}: {fault}"


def test_floors_must_fit_the_budget_of_their_type(file: Path) -> None:
    typed = BY_TYPE.replace("chat: {", "chat: {engine: {gpu_type: H100}, ")
    file.write_text(typed.replace("floor_gpus: 2", "floor_gpus: 21"))
    with pytest.raises(
        ConfigError, match=r"fleet.gpus.H100: 20 GPUs do not hold the floors of all \(chat 21\)"
    ):
        load_fleet(file)
