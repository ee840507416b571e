"""A running fleet from one file, and what tests do to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import yaml

from headway_cli.live_fleet import change, fleet_settings
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.ray.live_system import LiveSystem

FLEET, KEY = "models", "-"


class Fleet:
    """The running fleet, and its file, in which `common` stands outside of the deployments."""

    def __init__(self, path: Path, common: Mapping[str, Any]) -> None:
        self.path, self.port, self._common = path, free_port(), common
        self.url = f"http://127.0.0.1:{self.port}"
        self.gateway = LiveSystem(url=self.url)

    def write(self, **deployments: Mapping[str, Any]) -> None:
        common = {**self._common, "gateway": {**self._common["gateway"], "port": self.port}}
        self.path.write_text(yaml.safe_dump({**common, "deployments": deployments}))

    def deployment(self, name: str) -> LiveSystem:
        return LiveSystem(url=f"{self.url}/deployments/{name}")

    def has_all_decisions(self, name: str) -> bool:
        """True where their ids go up from 0 without a gap."""
        ids = sorted(record["id"] for record in self.deployment(name).decisions())
        return ids == list(range(len(ids)))

    def change(self, **deployments: Mapping[str, Any]) -> None:
        self.write(**deployments)
        change(fleet_settings(str(self.path), FLEET), FLEET, print)

    def models(self) -> list[str]:
        return [each["id"] for each in self.gateway.get("/v1/models")["data"]]

    def state(self, model: str) -> str:
        """As clients see it."""
        return str(self.gateway.get(f"/v1/models/{model}")["state"])

    async def asked(self, model: str, tokens: int = 3, **more: Any) -> int:
        """The output tokens that came of a request, of which `more` is vLLM's."""
        async with openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=2 * PATIENCE_S
        ) as client:
            stream = await client.completions.create(
                model=model,
                prompt="Hello",
                max_tokens=tokens,
                stream=True,
                stream_options={"include_usage": True},
                extra_body=more,
            )
            usages = [part.usage async for part in stream if part.usage]
            return usages[-1].completion_tokens
