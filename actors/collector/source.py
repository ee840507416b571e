"""What the MetricCollector needs of a source of metrics."""

from typing import Protocol

from actors.collector.values import Health, Measured


class Source(Protocol):
    """Metrics of one deployment. None of these raises for what the other side does."""

    async def collect(self, start_s: float, end_s: float) -> Measured:
        """The interval as measured; `end_s` is now."""

    async def probe(self) -> Health:
        """Whether the source answers now."""

    def status(self) -> dict[str, object]:
        """Address, successes and failures so far, for people."""

    async def close(self) -> None:
        """Let go of connections and threads."""
