"""Each plugin by itself, and how profiles are read from settings."""

from math import inf

import numpy as np
import pytest
import yaml

from headway.config import HeadwayConfig, Role
from headway.config.routing import RoutingSettings
from headway.engine import EngineRules
from headway.routing import (
    ReplicaLoad,
    ReplicaUpdate,
    RequestSlo,
    RoutingError,
    ShedReason,
)
from headway.routing.decide.headroom import LEAST, SloTerms, judge
from headway.routing.decide.plugins import PLUGINS
from headway.routing.decide.scorers import (
    BinPack,
    KvCacheScorer,
    LeastLoad,
    MaxScorePicker,
    PrefixCacheScorer,
    QueueScorer,
    RandomPicker,
    RoundRobinPicker,
    SessionAffinityScorer,
    WeightedRandomPicker,
)
from headway.routing.factory import BUILT_IN, make_pipelines, prediction_profile
from headway.routing.fleet.table import FleetRow
from headway.routing.predict.forecast import ForecastRow
from tests.routing.routers import SPLIT, placed, question, request, router

DOCUMENT_002 = """
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: slo-request-tracker
- type: slo-scorer
- type: slo-aware-profile-handler
- type: weighted-random-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: slo-request-tracker
  - pluginRef: queue-scorer
  - pluginRef: kv-cache-utilization-scorer
  - pluginRef: prefix-cache-scorer
- name: slo
  plugins:
  - pluginRef: prefix-cache-scorer
    weight: 0
  - pluginRef: slo-request-tracker
  - pluginRef: slo-scorer
  - pluginRef: weighted-random-picker
profile: default
"""


class TestScorers:
    def test_queue(self) -> None:
        made = router(count=3)
        made.book(FleetRow.WAITING, 4, 0, 1)
        made.book(FleetRow.OTHER_WAITING, 0, 0, 2)
        assert QueueScorer().score(question(made)).tolist() == [0.0, 1.0, 0.25]
        assert QueueScorer().score(question(router(count=3))).tolist() == [1.0, 1.0, 1.0]

    def test_kv_cache(self) -> None:
        made = router(count=3)
        capacity = made.cell(FleetRow.CAPACITY_TOKENS)
        made.book(FleetRow.KV_TOKENS, capacity / 4, 2 * capacity, capacity / 4)
        made.book(FleetRow.OTHER_TOKENS, 0, 0, capacity / 4)
        assert KvCacheScorer().score(question(made)).tolist() == [0.75, 0.0, 0.5]

    def test_an_unknown_cache_counts_as_empty(self) -> None:
        made = router("least_load", count=1, profiles={})
        made.book(FleetRow.KV_TOKENS, 1e6)
        assert KvCacheScorer().score(question(made)).tolist() == [1.0]

    def test_prefix_cache(self) -> None:
        made = router(count=2, rules=EngineRules(chunk_tokens=2048, prefix_cache_tokens=10_000))
        made.state.prefixes.insert(made.slot("mixed-1"), (7, 8, 9))
        asked = question(made, input_tokens=2048, blocks=(7, 8, 1), block_tokens=512)
        assert PrefixCacheScorer().score(asked).tolist() == [0.0, 0.5]

    def test_a_fully_cached_prompt_still_computes_a_token(self) -> None:
        made = router(count=1, rules=EngineRules(chunk_tokens=2048, prefix_cache_tokens=10_000))
        made.state.prefixes.insert(made.slot("mixed-0"), (7, 8))
        asked = question(made, input_tokens=1024, blocks=(7, 8), block_tokens=512)
        assert asked.cached_tokens.tolist() == [1023.0]

    def test_session_affinity(self) -> None:
        made = router("least_load", count=3)
        first = placed(made.submit(0.0, request("a", session="s")))
        scores = SessionAffinityScorer().score(question(made, session="s"))
        assert scores.tolist() == [float(f"mixed-{n}" == first.decode_replica) for n in range(3)]
        assert SessionAffinityScorer().score(question(made, session="t")).tolist() == [0.0] * 3
        assert SessionAffinityScorer().score(question(made)).tolist() == [0.0] * 3

    def test_least_load_counts_what_engines_report_beyond_ours(self) -> None:
        made = router("least_load", count=2)
        busy = ReplicaLoad(running=3, waiting=1, kv_usage=0.5)
        made.replica_changed(0.0, ReplicaUpdate(replica="mixed-0", role=Role.MIXED, load=busy))
        assert LeastLoad().score(question(made)).tolist() == [0.2, 1.0]
        made.book(FleetRow.RUNNING, 1, 2)
        made.book(FleetRow.COMING, 2, 1)
        made.book(FleetRow.WAITING, 1, 5)  # Those that come and those whose prompts wait are mostly the same.
        assert LeastLoad().score(question(made)).tolist() == [1 / 8, 1 / 8]

    def test_bin_pack_prefers_the_fullest_with_room(self) -> None:
        made = router(count=3, rules=EngineRules(chunk_tokens=2048, max_batch_size=4))
        made.book(FleetRow.RUNNING, 4, 3, 1)
        scores = BinPack().score(question(made))
        assert scores.argsort().tolist() == [0, 2, 1]
        assert scores[0] < 0.5 <= scores[2]

    def test_prefill_replicas_are_loaded_by_tokens(self) -> None:
        made = router("least_load", SPLIT, count=2)
        made.submit(0.0, request("a", input_tokens=999))
        assert sorted(LeastLoad().score(question(made, Role.PREFILL))) == [1 / 1000, 1.0]


class TestPickers:
    def test_max_score_takes_the_best_and_draws_among_equals(self) -> None:
        generator = np.random.default_rng(0)
        scores = np.array([0.2, 0.9, 0.9, np.nan])
        assert {MaxScorePicker().pick(None, scores, generator) for _ in range(50)} == {1, 2}

    def test_random_takes_any(self) -> None:
        generator = np.random.default_rng(0)
        assert {RandomPicker().pick(None, np.zeros(3), generator) for _ in range(50)} == {0, 1, 2}

    def test_round_robin_takes_turns_by_id(self) -> None:
        made = router("round_robin", count=3)
        names = [placed(made.submit(0.0, request(f"r{n}"))).decode_replica for n in range(4)]
        assert names == ["mixed-0", "mixed-1", "mixed-2", "mixed-0"]
        assert RoundRobinPicker().pick(question(made), np.zeros(3), None) == 0

    @pytest.mark.parametrize(("sharpness", "low", "high"), [(0, 0.45, 0.55), (1, 0.7, 0.8), (32, 0.999, 1.0)])
    def test_weighted_random_draws_by_score_to_the_sharpness(self, sharpness, low, high) -> None:
        generator, scores = np.random.default_rng(0), np.array([0.3, 0.0, 0.9, np.nan])
        picker = WeightedRandomPicker(sharpness=sharpness)
        drawn = [picker.pick(None, scores, generator) for _ in range(2000)]
        assert set(drawn) <= {0, 2}
        assert low <= np.mean(np.array(drawn) == 2) <= high


def rows(*candidates):
    """A forecast from (TTFT, TPOT) pairs."""
    table = np.zeros((len(ForecastRow), len(candidates)))
    table[ForecastRow.TTFT_S], table[ForecastRow.TPOT_S] = np.array(candidates).T
    table[ForecastRow.OTHERS_TPOT_S] = table[ForecastRow.TPOT_S]
    return table


def terms(**changes):
    fields = {
        "ttft_s": inf,
        "left_s": inf,
        "tpot_s": 0.08,
        "chunk_tokens": 2048.0,
        "max_batch": inf,
    }
    return SloTerms(**{**fields, **changes})


def fleet(*tightest):
    table = np.zeros((len(FleetRow), len(tightest)))
    table[FleetRow.TPOT_SLO_S] = tightest
    table[FleetRow.RUNNING] = np.isfinite(tightest)
    return table


class TestHeadroom:
    def test_document_002s_example(self) -> None:
        """A newcomer with 80 ms beside one with 50 ms, predicted 60 ms: −10 ms of headroom, not 20."""
        (verdict,) = judge(rows((0.1, 0.06)), fleet(0.05), np.arange(1), terms())
        assert verdict == pytest.approx(-0.2 * 0.010 / 0.050)
        (alone,) = judge(rows((0.1, 0.06)), fleet(0.1), np.arange(1), terms())
        assert alone > 0.0

    def test_idle_replicas_are_valid(self) -> None:
        cautious = terms(safety=2.0)
        assert judge(rows((0.1, 0.07)), fleet(inf), np.arange(1), cautious)[0] > 0.0
        assert judge(rows((0.1, 0.07)), fleet(0.1), np.arange(1), cautious)[0] < 0.0
        assert judge(rows((0.1, 0.09)), fleet(inf), np.arange(1), cautious)[0] < 0.0

    def test_ttft_counts_what_was_waited(self) -> None:
        late = terms(ttft_s=1.0, left_s=0.05)
        assert judge(rows((0.1, 0.01)), fleet(0.1), np.arange(1), late)[0] < 0.0

    def test_the_most_headroom_attracts(self) -> None:
        forecast, table = rows((0.1, 0.02), (0.1, 0.04), (0.1, 0.06)), fleet(0.1, 0.1, 0.1)
        scores = judge(forecast, table, np.arange(3), terms())
        assert scores.argsort().tolist() == [2, 1, 0]

    def test_no_prediction_is_no_verdict(self) -> None:
        assert np.isnan(judge(rows((np.nan, np.nan)), fleet(0.1), np.arange(1), terms())).all()

    def test_requests_pass_by_queues_unless_they_are_quicker(self) -> None:
        table = fleet(0.1, 0.1)
        table[FleetRow.WAITING, 0], table[FleetRow.PREFILL_TOKENS, 0] = 5, 20_000
        slow = judge(rows((0.5, 0.01), (0.2, 0.01)), table, np.arange(2), terms())
        quick = judge(rows((0.1, 0.01), (0.2, 0.01)), table, np.arange(2), terms())
        assert slow[0] < 0.0 < slow[1]
        assert (quick > 0.0).all()

    @pytest.mark.parametrize(("tpot_s", "harmless"), [(0.02, True), (0.05, True), (0.06, False)])
    def test_what_is_lost_leaves_half_of_the_room_to_what_can_be_saved(
        self, tpot_s: float, harmless: bool
    ) -> None:
        forecast = rows((0.1, tpot_s))
        forecast[ForecastRow.GROWTH] = 1.0 - 0.02 / tpot_s
        (verdict,) = judge(forecast, fleet(0.09), np.arange(1), terms(tpot_s=0.08, least_harm=True))
        assert (verdict >= -LEAST - 0.01 * 0.1) == harmless


class TestSloScorer:
    def test_a_lost_request_is_shed_at_once_unless_critical(self) -> None:
        made = router("slo")
        hopeless = RequestSlo(ttft_s=1e-4, tpot_s=0.1)
        (shed,) = made.submit(0.0, request("a", slo=hopeless)).sheds
        assert shed.reason is ShedReason.NO_HEADROOM
        assert "TTFT at least" in shed.detail
        assert placed(made.submit(0.0, request("b", slo=hopeless, critical=True))).profile == "slo"

    def test_a_promise_that_nobody_can_keep_binds_no_newcomer(self) -> None:
        made = router("slo", count=1)
        made.submit(0.0, request("a", slo=RequestSlo(ttft_s=5.0, tpot_s=1e-6), critical=True))
        placed(made.submit(0.0, request("b", slo=RequestSlo(ttft_s=5.0, tpot_s=0.1), critical=True)))
        assert made.cell(FleetRow.TPOT_SLO_S) == 0.1

    @pytest.mark.parametrize(
        ("ttft_s", "tpot_s", "waited_s", "words"),
        [
            (0.0004, 0.1, 0.0, "with 0.4 ms left, "),
            (0.0004, 0.1, 0.0008, "with 0 ms left, "),
            (5.0, 0.00025, 0.0, "for 0.25 ms, "),
            (5.0, 0.1, 9.0, "with 0 ms left, "),
            (0.0004, 1.2345, 0.0, "for 1234 ms, "),
        ],
    )
    def test_what_is_missing_is_told_in_figures_that_say_it(self, ttft_s, tpot_s, waited_s, words) -> None:
        hopeless = request(slo=RequestSlo(ttft_s=ttft_s, tpot_s=tpot_s))
        (shed,) = router("slo").submit(waited_s, hopeless).sheds
        assert words in shed.detail

    def test_without_a_profile_of_the_engine_it_falls_back_and_says_so(self) -> None:
        made = router("slo", profiles={})
        placement = placed(made.submit(0.0, request()))
        assert placement.profile == "default"
        assert placement.predicted_ttft_s is None
        assert made.metrics()["fallbacks"] == {("no_prediction",): 1}

    def test_a_session_goes_back_to_its_cached_prefix(self) -> None:
        made = router("slo", count=4, rules=EngineRules(chunk_tokens=2048, prefix_cache_tokens=100_000))
        blocks, slo = tuple(range(40)), RequestSlo(ttft_s=5.0, tpot_s=0.1)
        first = placed(made.submit(0.0, request("a", slo=slo, input_tokens=20_480, blocks=blocks)))
        made.first_token(1.0, "a")
        made.complete(3.0, "a", 50)
        again = placed(
            made.submit(9.0, request("b", arrival_s=9.0, slo=slo, input_tokens=21_000, blocks=blocks))
        )
        assert again.decode_replica == first.decode_replica
        assert again.cached_tokens == 20_480


def profile(name: str, *plugins: str) -> dict[str, object]:
    return {"name": name, "plugins": [{"plugin_ref": each} for each in plugins]}


def handler(prediction: str, name: str | None = None) -> dict[str, object]:
    return {"type": "slo-aware-profile-handler", "name": name, "parameters": {"prediction": prediction}}


class TestProfiles:
    def test_document_002_loads_as_it_is(self) -> None:
        document = yaml.safe_load(DOCUMENT_002)
        pipelines = make_pipelines(RoutingSettings.model_validate(document))
        default, slo = pipelines["default"], pipelines["slo"]
        assert [type(scorer).__name__ for scorer, _ in default.scorers] == [
            "QueueScorer",
            "KvCacheScorer",
            "PrefixCacheScorer",
        ]
        assert isinstance(default.picker, MaxScorePicker)
        assert [type(scorer).__name__ for scorer, _ in slo.scorers] == ["SloScorer"]
        assert isinstance(slo.picker, WeightedRandomPicker)
        assert slo.uses_predictions
        assert default.records_outcomes
        assert not default.uses_predictions

    def test_all_built_in_profiles_are_made_of_known_plugins(self) -> None:
        pipelines = make_pipelines(RoutingSettings())
        assert set(pipelines) == set(BUILT_IN)
        assert {name for weights in BUILT_IN.values() for name in weights} <= set(PLUGINS.names())

    @pytest.mark.parametrize(
        ("routing", "where", "known"),
        [
            ({"plugins": [{"type": "nonsense"}]}, "routing.plugins.0.type", "queue-scorer"),
            (
                {"plugins": [{"type": "prefix-cache-scorer", "parameters": {"x": 1}}]},
                "routing.plugins.0",
                "most_load",
            ),
            (
                {"plugins": [{"type": "weighted-random-picker", "parameters": {"sharpness": "no"}}]},
                "routing.plugins.0.parameters.sharpness",
                "number",
            ),
            ({"plugins": [{"type": "random"}, {"type": "random"}]}, "routing.plugins.1", "second"),
            (
                {"scheduling_profiles": [{"name": "p", "plugins": [{"plugin_ref": "q"}]}]},
                "routing.scheduling_profiles.p",
                "queue-scorer",
            ),
            ({"profile": "nonsense"}, "routing.profile", "least_load"),
            ({"fallback": "nonsense"}, "routing.fallback", "least_load"),
            ({"fallback": "slo"}, "routing.fallback: 'slo' needs predictions", "default, least_load"),
            (
                {"scheduling_profiles": [profile("p", "random", "queue-scorer", "round-robin")]},
                "routing.scheduling_profiles.p",
                "random and round-robin",
            ),
            (
                {"plugins": [handler("nosuch")]},
                "routing.plugins.0.parameters.prediction: no profile 'nosuch'",
                "least_load",
            ),
            (
                {"plugins": [{"type": "random"}, handler("slo"), handler("prefix", "other")]},
                "routing.plugins.2: a second slo-aware-profile-handler",
                "routing.plugins.1",
            ),
        ],
    )
    def test_what_is_unknown_is_named_with_what_is_known(self, routing, where, known) -> None:
        config = HeadwayConfig.model_validate({"routing": routing})
        with pytest.raises(RoutingError) as raised:
            prediction_profile(config.routing, make_pipelines(config.routing))
        assert where in str(raised.value)
        assert known in str(raised.value)
        assert "\n" not in str(raised.value)

    def test_the_settings_handler_replaces_the_built_in_one_whatever_its_name(self) -> None:
        given = RoutingSettings.model_validate({"plugins": [handler("prefix", "mine")]})
        assert prediction_profile(given, make_pipelines(given)) == "prefix"
        assert prediction_profile(RoutingSettings(), make_pipelines(RoutingSettings())) == "slo"

    def test_named_plugins_have_their_own_parameters(self) -> None:
        routing = {
            "plugins": [{"type": "weighted-random-picker", "name": "soft", "parameters": {"sharpness": 2}}],
            "scheduling_profiles": [{"name": "p", "plugins": [{"plugin_ref": "soft"}]}],
        }
        pipelines = make_pipelines(HeadwayConfig.model_validate({"routing": routing}).routing)
        assert pipelines["p"].picker == WeightedRandomPicker(sharpness=2.0)
        assert pipelines["slo"].picker == WeightedRandomPicker()
