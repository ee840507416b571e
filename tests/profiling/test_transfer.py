"""KV transfer: timed on engines in virtual time, fitted, over HTTP, and read back by the engine model."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from headway.config import load_config
from headway.engine import engine_profile, engine_rules
from headway.engine.rules import profiled_transfer
from headway.loadgen import LoadPlan
from headway.planning.types import Role, Slo
from headway.profiling import RequestError, TargetError
from headway.profiling.sweep.measure import Arrival
from headway.profiling.transfer import (
    EndpointPair,
    Handover,
    TransferSample,
    fit_transfers,
    measure_transfers,
    transfer_lengths,
    transfer_meta,
)
from headway_cli.profile_transfer import EnginePair
from interp import ProfileError, build_profile
from serve_apps.engines import make_engine
from tests.engines.engine_cases import SPLIT, config_of
from tests.engines.virtual_loop import run
from tests.patience import PATIENCE_S

LENGTHS = (128, 512, 2048, 8192)


def samples(seconds: Sequence[float]) -> list[TransferSample]:
    return [
        TransferSample(tokens=tokens, runs_s=(each,)) for tokens, each in zip(LENGTHS, seconds, strict=True)
    ]


def timed(kv_transfer: dict[str, float]) -> tuple[TransferSample, ...]:
    config = config_of(SPLIT, kv_transfer=kv_transfer)

    async def measure() -> tuple[TransferSample, ...]:
        prefill, decode = (make_engine(config, role, role.value) for role in (Role.PREFILL, Role.DECODE))
        pair = EnginePair(prefill, decode, config.model)
        return await measure_transfers(pair, LENGTHS, repeats=2, seed=1, progress=lambda _: None)

    return run(measure())


@pytest.mark.parametrize(("latency_ms", "bandwidth_gb_s"), [(5.0, 25.0), (40.0, 0.5), (0.0, 3.0)])
def test_simulated_engines_transfer_as_their_settings_say(latency_ms: float, bandwidth_gb_s: float) -> None:
    found = transfer_meta(
        timed({"latency_ms": latency_ms, "bandwidth_gb_s": bandwidth_gb_s}),
        bytes_per_token=131_072,
        how="here",
    )
    # The own iteration is taken at contexts a few tokens longer than that of the first one.
    assert found["latency_ms"] == pytest.approx(latency_ms, abs=0.1)
    assert found["bandwidth_gb_s"] == pytest.approx(bandwidth_gb_s, rel=0.02)
    assert found["error"] < 0.01
    assert found["spread"] == pytest.approx(0.0, abs=1e-6)


def test_noise_moves_the_line_little() -> None:
    rng = np.random.default_rng(3)
    truth = 0.004 + np.array(LENGTHS) * 2e-6
    fit = fit_transfers(samples(truth * rng.normal(1.0, 0.03, len(truth))))
    assert fit.latency_s == pytest.approx(0.004, rel=0.1)
    assert fit.s_per_token == pytest.approx(2e-6, rel=0.1)


def test_a_transfer_that_does_not_grow_shows_no_bandwidth_and_claims_none() -> None:
    fit = fit_transfers(samples([0.0052, 0.005, 0.005, 0.0048]))
    assert fit.s_per_token == 0.0
    assert fit.latency_s == pytest.approx(0.005, rel=0.01)
    meta = transfer_meta(samples([0.0052, 0.005, 0.005, 0.0048]), bytes_per_token=None, how="here")
    assert meta["bandwidth_gb_s"] is None
    assert not meta["bytes_known"]


def test_a_latency_is_never_negative_and_no_time_at_all_is_an_error() -> None:
    assert fit_transfers(samples([1e-4, 6e-4, 3e-3, 1.3e-2])).latency_s == 0.0
    with pytest.raises(TargetError, match="no longer than an iteration"):
        fit_transfers(samples([-1e-3, -1e-3, 0.0, 1e-3]))


def test_the_decode_engines_own_iteration_is_not_in_it() -> None:
    over = Handover(1.0, [Arrival(1.030, 1.0), Arrival(1.040, 1.0), Arrival(1.060, 2.0)])
    assert over.transfer_s == pytest.approx(0.020)
    with pytest.raises(TargetError, match="one token"):
        Handover(1.0, [Arrival(1.03, 1.0)]).transfer_s  # noqa: B018 - a property that raises


def test_lengths_reach_the_longest_request() -> None:
    assert transfer_lengths(2048)[0] == 128
    assert transfer_lengths(2048)[-1] == 2036
    with pytest.raises(RequestError, match="too short"):
        transfer_lengths(130)


def profile_with(**meta: Any) -> Any:
    known = engine_profile(load_config())
    return build_profile(known.prefill.samples, known.decode.samples, meta)


def test_settings_win_over_the_profile_which_wins_over_the_default() -> None:
    measured = profile_with(kv_transfer={"latency_ms": 12.0, "bandwidth_gb_s": 2.0}, kv_bytes_per_token=1e6)
    rules = engine_rules(load_config(), measured)
    assert rules.transfer_s(1000) == pytest.approx(0.012 + 0.5)
    latency = load_config(None, {"engine.kv_transfer.latency_ms": 0})
    assert engine_rules(latency, measured).transfer_s(1000) == pytest.approx(0.5)
    both = load_config(None, {"engine.kv_transfer": {"latency_ms": 1, "bandwidth_gb_s": 1}})
    assert engine_rules(both, measured).transfer_s(1000) == pytest.approx(0.001 + 1.0)
    assert engine_rules(load_config(), profile_with()).transfer_s(0) == pytest.approx(0.005)
    assert engine_rules(load_config(), profile_with()).transfer_bytes_per_s == 25e9
    unseen = profile_with(kv_transfer={"latency_ms": 12.0, "bandwidth_gb_s": None})
    assert engine_rules(load_config(), unseen).transfer_bytes_per_s == 25e9


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({"latency_ms": -1}, "kv_transfer: latency_ms: .*0"),
        ({"latency_ms": 1, "bandwidth_gb_s": "fast"}, "kv_transfer: bandwidth_gb_s: "),
        (25, "kv_transfer: must be a JSON object"),
    ],
)
def test_a_bad_transfer_in_a_profile_is_one_line(said: Any, fault: str) -> None:
    with pytest.raises(ProfileError, match=fault) as caught:
        profiled_transfer(profile_with(kv_transfer=said))
    assert "\n" not in str(caught.value)


class Clock:
    """Stands still until it is moved, which waits until somebody has looked at it once more."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.looked = asyncio.Event()

    def __call__(self) -> float:
        self.looked.set()
        return self.now_s


class Servers:
    """A prefill and a decode server of vLLM's protocol; `moves` is how much of a prompt is fetched.

    A transfer takes 20 ms and 0.1 ms a token of the client's clock, and every token of an output 2 ms.
    """

    def __init__(self, *, moves: float = 1.0, says: bool = True) -> None:
        self.moves, self.says, self.clock = moves, says, Clock()
        self.fetched = 0.0
        self.asked: list[dict[str, Any]] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/metrics", self.metrics)
        return app

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        said = body.get("kv_transfer_params", {})
        if said.get("do_remote_decode"):
            where = {"remote_engine_id": "p", "remote_block_ids": [1], "do_remote_prefill": True}
            return web.json_response({"choices": [], "kv_transfer_params": where if self.says else None})
        if said.get("do_remote_prefill"):
            self.fetched += self.moves * len(body["prompt"])
            self.clock.now_s += 0.02 + 1e-4 * len(body["prompt"])
        answer = web.StreamResponse()
        await answer.prepare(request)
        for number in range(body["max_tokens"]):
            said = {"choices": [{"text": "a"}], "usage": {"completion_tokens": number + 1}}
            self.clock.now_s += 0.002
            self.clock.looked.clear()
            await answer.write(f"data: {json.dumps(said)}\n\n".encode())
            # The next one comes once the client has noted the time of this one.
            await self.clock.looked.wait()
        await answer.write(b"data: [DONE]\n\n")
        return answer

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            text='vllm:prompt_tokens_by_source_total{source="local_compute"} 7\n'
            f'vllm:prompt_tokens_by_source_total{{a="b",source="external_kv_transfer"}} {self.fetched}\n'
            f"vllm:nixl_bytes_transferred_sum{{a='b'}} {self.fetched * 2048}\n"
        )


def over_http(servers: Servers) -> tuple[tuple[TransferSample, ...], float | None]:
    async def measure() -> tuple[tuple[TransferSample, ...], float | None]:
        async with TestServer(servers.app()) as server:
            url = str(server.make_url("")).rstrip("/")
            plan = LoadPlan(url=url, model="m", slo=Slo(ttft_s=1.0, itl_s=1.0), timeout_s=PATIENCE_S)
            async with EndpointPair(url, plan, servers.clock) as pair:
                found = await measure_transfers(pair, (128, 2048), repeats=2, seed=1, progress=lambda _: None)
                return found, await pair.bytes_per_token()

    return asyncio.run(measure())


def test_a_pair_of_servers_is_asked_as_vllms_proxies_ask() -> None:
    servers = Servers()
    found, size = over_http(servers)
    assert size == 2048.0
    assert [each.transfer_s for each in found] == pytest.approx([0.02 + 1e-4 * 128, 0.02 + 1e-4 * 2048])
    handed = [body for body in servers.asked if body.get("kv_transfer_params")]
    prefill, decode = handed[0], handed[1]
    assert (prefill["max_tokens"], prefill["kv_transfer_params"]["do_remote_decode"]) == (1, True)
    assert decode["kv_transfer_params"]["remote_engine_id"] == "p"
    assert decode["prompt"] == prefill["prompt"]


def test_a_transfer_that_did_not_happen_is_an_error() -> None:
    with pytest.raises(TargetError, match="computed the prompts by itself"):
        over_http(Servers(moves=0.0))
    with pytest.raises(TargetError, match="no kv_transfer_params"):
        over_http(Servers(says=False))
