"""The column of simulated engines in docs/reference/clients.md."""

import pytest

from headway.config import HeadwayConfig
from serve_apps.engines.answering.fields import PATHS, body_schema
from tests.compatibility import hold, outcomes
from tests.gateway.one_engine import OneEngine
from tests.gateway.serving import serving


@pytest.mark.slow
def test_simulated_engines_take_what_the_page_says() -> None:
    config = HeadwayConfig.model_validate(
        {"model": "m", "engine": {"time_scale": 50.0}, "pools": {"mixed": {}}}
    )
    read = {path: body_schema(path)["properties"] for path in PATHS}
    with serving(config, OneEngine(config)) as running:
        hold("simulated", outcomes(running.url, "m", read))
