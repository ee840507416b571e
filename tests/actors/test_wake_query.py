"""The query for what waits in front of engines: what its answers mean, and for what interval they stand."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from actors.collector.exposition import SourceDownError
from actors.collector.interval import Health, HealthStatus, Measured, unmeasured
from actors.collector.wake_query import WakeQuery
from headway.config import MetricsSettings
from headway.planning import Role
from tests.http_thread import served

NAN = float("nan")
AWAKE, ASLEEP = {Role.MIXED: 2}, {Role.MIXED: 0}
GONE = unmeasured(10.0, 20.0, HealthStatus.STARTING, "Prometheus has no series")
IDLE = Measured(start_s=10.0, end_s=20.0, health=Health(status=HealthStatus.OK), requests=0.0)


def asked(answer: Any, *calls: Any) -> tuple[list[Any], list[str]]:
    """What came of these uses of a query whose Prometheus answers so, and the queries."""
    queries: list[str] = []

    async def said(request: web.Request) -> web.Response:
        queries.append(str((await request.post())["query"]))
        return web.json_response(answer) if isinstance(answer, dict) else web.Response(status=answer)

    app = web.Application()
    app.router.add_post("/api/v1/query", said)
    with served(app) as (url, _):
        settings = MetricsSettings(source="prometheus", url=url, wake='sum(queue{model="$model"})')

        async def ask() -> list[Any]:
            query = WakeQuery(settings, "rare-8b")
            try:
                return [await call(query) for call in calls]
            finally:
                await query.close()

        return asyncio.run(ask()), queries


def found(*values: str) -> dict[str, Any]:
    return {"data": {"result": [{"metric": {}, "value": [1, value]} for value in values]}}


@pytest.mark.parametrize(
    ("answer", "waiting"),
    [
        (found("2", "1"), 3.0),
        (found("0"), 0.0),
        (found(), None),
        (found("NaN"), None),
        (found("NaN", "4"), 4.0),
    ],
)
def test_what_waits_is_the_sum_of_what_is_found(answer: Any, waiting: float | None) -> None:
    assert asked(answer, WakeQuery.waiting) == ([waiting], ['sum(queue{model="rare-8b"})'])


def test_no_answer_names_the_setting() -> None:
    with pytest.raises(SourceDownError, match=r"^metrics\.wake: Prometheus at http://127.*500"):
        asked(500, WakeQuery.waiting)


@pytest.mark.parametrize(
    ("measured", "ordered", "requests", "status"),
    [
        (GONE, ASLEEP, 0.0, HealthStatus.OK),
        # Engines that should be there, and are not, are no silence.
        (GONE, AWAKE, None, HealthStatus.STARTING),
        (GONE, {}, None, HealthStatus.STARTING),
        (IDLE, AWAKE, 0.0, HealthStatus.OK),
    ],
)
def test_it_stands_for_the_metrics_of_engines_that_sleep(
    measured: Measured, ordered: dict[Role, int], requests: float | None, status: HealthStatus
) -> None:
    (seen,), _ = asked(found("0"), lambda query: query.stands_for(measured, ordered))

    assert (seen.start_s, seen.end_s, seen.health.status) == (10.0, 20.0, status)
    assert seen.requests == (pytest.approx(NAN, nan_ok=True) if requests is None else requests)


@pytest.mark.parametrize(("measured", "ordered"), [(GONE, ASLEEP), (IDLE, AWAKE)])
def test_without_its_answer_no_pool_sleeps_or_goes_to_sleep(
    measured: Measured, ordered: dict[Role, int]
) -> None:
    (seen,), _ = asked(500, lambda query: query.stands_for(measured, ordered))

    assert seen.health.status is HealthStatus.DOWN
    assert seen.health.detail.startswith("metrics.wake: Prometheus at ")
    assert seen.requests != 0.0


def test_wake_needs_a_prometheus() -> None:
    with pytest.raises(ValueError, match="wake needs the url of a Prometheus"):
        MetricsSettings(wake="sum(x)")
