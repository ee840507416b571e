"""The column of simulated engines in docs/reference/clients.md."""

from headway.config import HeadwayConfig
from tests.compatibility import documented, outcomes
from tests.gateway.one_engine import OneEngine
from tests.gateway.serving import serving


def test_simulated_engines_take_what_the_page_says() -> None:
    config = HeadwayConfig.model_validate(
        {"model": "m", "engine": {"time_scale": 50.0}, "pools": {"mixed": {}}}
    )
    with serving(config, OneEngine(config)) as running:
        assert outcomes(running.url, "m") == documented("simulated")
