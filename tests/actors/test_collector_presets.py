"""Presets: the file, what overrides change, and what is said where their names are missing."""

import re
from typing import get_args

import pytest

from actors.collector.exposition import LineReader
from actors.collector.interval import Quantity
from actors.collector.inventory import inventory, patterns, shown_of
from actors.collector.presets import PRESETS, preset
from actors.collector.series import ModelSeries
from actors.collector.tracker import Tracker
from headway.config import ConfigError, HeadwayConfig, load_config
from headway.config.presets import ENGINE_PRESETS, PresetName, PresetSettings
from headway.planning import Role
from serve_apps.arguments import read_control_arguments

MODEL = "Qwen/Qwen3-32B"


def overridden(name: str = "vllm", **overrides: object) -> ModelSeries:
    settings = {"model": MODEL, "metrics": {"preset": name, "overrides": overrides}}
    # As they reach the collector, which is given the settings as JSON.
    given = HeadwayConfig.model_validate_json(HeadwayConfig.model_validate(settings).model_dump_json())
    return ModelSeries(preset(name, given.metrics.overrides), MODEL)


def measured(series: ModelSeries, *pages: str):
    """Between the first page and the last one, ten seconds apart."""
    lines, tracker = LineReader(series.names), Tracker(series, 1.0)
    for place, page in enumerate(pages):
        tracker.add(lines.read(page), 10.0 * place)
    return tracker.measure(0.0, 10.0 * (len(pages) - 1))


def vllm_page(ended: int, label: str = f'model_name="{MODEL}"', prefix: str = "vllm:", **other: str) -> str:
    """Prompts of 100 tokens, TTFT 0.2 s."""
    names = {name: name for name in ("request_prompt_tokens", "time_to_first_token_seconds")} | other
    isl, ttft = names["request_prompt_tokens"], names["time_to_first_token_seconds"]
    text = f"""\
num_requests_running{{{label}}} 0
num_requests_waiting{{{label}}} 0
kv_cache_usage_perc{{{label}}} 25
request_success_total{{{label}}} {ended}
{isl}_sum{{{label}}} {ended * 100}
{isl}_count{{{label}}} {ended}
{ttft}_sum{{{label}}} {ended * 200}
{ttft}_count{{{label}}} {ended}
{ttft}_bucket{{{label},le="100"}} 0
{ttft}_bucket{{{label},le="300"}} {ended}
{ttft}_bucket{{{label},le="+Inf"}} {ended}
"""
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def test_the_settings_know_the_presets_of_the_file():
    assert set(get_args(PresetName)) == set(PRESETS)
    assert set(ENGINE_PRESETS) == {name for name, each in PRESETS.items() if each.requests[0].engine}
    assert all(each.labelled_model == "" for each in PRESETS.values())
    assert "dp_rank" not in PRESETS["sglang"].replicated
    assert "attn_cp_rank" in PRESETS["sglang"].replicated


def test_a_preset_of_the_file_serves_as_overrides():
    vllm, acme = PRESETS["vllm"], preset("vllm", PresetSettings(prefix="acme:"))
    assert [one.name.replace("acme:", "vllm:") for _, one in acme.every()] == [
        o.name for _, o in vllm.every()
    ]
    assert acme.itl.also == ("acme:time_per_output_token_seconds",)


def test_names_labels_values_and_units_are_overridden():
    series = overridden(
        prefix="acme:",
        model_label="model",
        model="~alias|other",
        series={
            "ttft": {"name": "first_token_ms", "unit": "ms"},
            "isl": {"where": {"kind": "~chat|text"}},
            "kv_usage": {"unit": "percent"},
            "cached": [],
        },
    )
    label = 'model="alias",kind="chat"'
    own = vllm_page(0, label, "acme:"), vllm_page(50, label, "acme:")
    pages = [page.replace("acme:time_to_first_token_seconds", "first_token_ms") for page in own]
    found = measured(series, pages[0], pages[1], pages[1])
    assert (found.requests, found.isl_tokens) == (50.0, 100.0)
    assert found.ttft_s.mean == pytest.approx(0.2)
    assert found.ttft_s.p95 == pytest.approx(0.29)
    assert found.load[Role.MIXED].kv_usage == pytest.approx(0.25)
    assert Quantity.CACHED not in {channel.quantity for channel in series.channels}
    # Another kind, another model.
    assert measured(series, *(page.replace("chat", "tool") for page in pages)).isl_tokens != 100.0
    assert "no series" in measured(series, *(page.replace("alias", "mine") for page in pages)).health.detail


def test_load_may_lack_the_model_and_name_roles_in_its_own_words():
    series = overridden(
        "headway", any_case=True, by_model=True, role_label="stage", roles={"p": "prefill", "d": "decode"}
    )
    page = "".join(
        f'headway_replica_{figure}{{model="{model}",stage="{stage}"}} {value}\n'
        for model, value in ((MODEL.lower(), 2), ("other", 5))
        for stage in "pd"
        for figure in ("running_requests", "waiting_requests", "kv_usage")
    )
    page += f'headway_request_arrivals_total{{model="{MODEL}"}} 7\n'
    found = measured(series, page, page)
    assert {role: load.running for role, load in found.load.items()} == {Role.PREFILL: 2.0, Role.DECODE: 2.0}


def test_lengths_are_tokens_per_request_where_there_is_no_histogram():
    def page(ended: int) -> str:
        label = f'model_name="{MODEL}"'
        return (
            f"trtllm_num_requests_running{{{label}}} 0\ntrtllm_num_requests_waiting{{{label}}} 0\n"
            f'trtllm_request_success_total{{{label},finished_reason="stop"}} {ended - 4}\n'
            f'trtllm_request_success_total{{{label},finished_reason="length"}} 4\n'
            f"trtllm_prompt_tokens_total{{{label}}} {ended * 600}\n"
            f"trtllm_generation_tokens_total{{{label}}} {ended * 90}\n"
        )

    found = measured(ModelSeries(PRESETS["trtllm"], MODEL), page(10), page(20))
    assert (found.requests, found.isl_tokens, found.osl_tokens) == (10.0, 600.0, 90.0)


@pytest.mark.parametrize("label", [MODEL, MODEL.lower(), MODEL.upper()])
def test_dynamo_names_a_model_in_either_case(label):
    series = ModelSeries(PRESETS["dynamo"], MODEL)
    text = f'dynamo_frontend_inflight_requests{{model="{label}"}} 1\n'
    assert series.shows(LineReader(series.names).read(text))
    assert not series.shows(LineReader(series.names).read(text.replace("3-32", "2-72")))


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        ("{prefixx: x}", "metrics.overrides.prefixx: unknown key; did you mean 'prefix'?"),
        ("{series: {ttftt: x}}", "metrics.overrides.series: unknown quantity 'ttftt'; did you mean 'ttft'?"),
        (
            "{series: {itl: {unti: ms}}}",
            "series.itl.0.unti: unknown key; did you mean 'unit'?",
        ),
        ("{series: {itl: {unit: min}}}", "input should be 's', 'ms', 'us', 'share' or 'percent'"),
        ("{series: {isl: []}}", "metrics.overrides.series: with preset vllm needs a name of isl"),
        ("{series: {running: []}}", "needs a name of running"),
    ],
)
def test_a_wrong_override_is_one_line(overrides, fault, tmp_path):
    path = tmp_path / "fleet.yaml"
    metrics = "source: engines, preset: vllm, engines: {mixed: {addresses: [a:1]}}"
    path.write_text(f"pools: {{mixed: {{}}}}\nmetrics: {{{metrics}, overrides: {overrides}}}\n")
    with pytest.raises(ConfigError) as raised:
        read_control_arguments({"config": str(path), "connector.kind": "virtual"})
    assert fault in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_without_overrides_is_as_before(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("metrics: {preset: vllm}\n")
    assert preset("vllm", load_config(path).metrics.overrides) == PRESETS["vllm"]


def said(series: ModelSeries, page: str) -> str:
    reader = LineReader(dict.fromkeys(names_of(page), ()))
    return inventory(series, shown_of(series, reader.read(page))).instead


def names_of(page: str) -> set[str]:
    return {line.partition("{")[0] for line in page.splitlines()}


@pytest.mark.parametrize(
    ("page", "instead"),
    [
        (vllm_page(1), ""),
        (
            vllm_page(1, prefix="kserve_vllm:"),
            "no `vllm:num_requests_running`; 11 series begin with `kserve_vllm:`: preset kserve",
        ),
        (vllm_page(1, prefix=""), "11 series have names without a prefix: preset nim"),
        (vllm_page(1, prefix="acme_vllm:"), "begin with `acme_vllm:`: preset vllm, metrics.overrides.prefix"),
        (vllm_page(1, 'model_name="x"'), f"no series of the model {MODEL}, only of x"),
        (vllm_page(1, 'model_name="x"', "kserve_vllm:"), "preset kserve (only of x)"),
        ('python_gc_objects_collected_total{generation="0"} 1\n', "--disable-log-stats"),
    ],
)
def test_what_is_there_instead_is_said(page, instead):
    found = said(ModelSeries(PRESETS["vllm"], MODEL), page)
    assert instead in found if instead else found == ""


def test_each_quantity_has_a_line():
    series, page = ModelSeries(PRESETS["vllm"], MODEL), vllm_page(1)
    page += 'vllm:time_per_output_token_seconds_count{model_name="Qwen/Qwen3-32B"} 1\n'
    page += 'vllm:request_queue_time_seconds_count{model_name="x"} 1\n'
    reader = LineReader(dict.fromkeys(names_of(page), ()))
    lines = inventory(series, shown_of(series, reader.read(page))).lines
    assert "requests: vllm:request_success_total, 1 series" in lines
    assert "itl: vllm:time_per_output_token_seconds, 1 series" in lines
    assert "cached: no vllm:prefix_cache_hits_total" in lines
    assert "queue: vllm:request_queue_time_seconds, but only of x" in lines
    assert {line.partition(":")[0] for line in lines} == {name for name, _ in series.preset.every()} - {
        "alive"
    }


def test_a_prometheus_is_asked_for_every_name_that_an_inventory_looks_at():
    series = ModelSeries(PRESETS["vllm"], MODEL)
    asked = re.compile("|".join(patterns(series)))
    for each in PRESETS.values():
        assert asked.fullmatch(each.alive.name)
        assert asked.fullmatch(f"acme_{each.alive.name}")
