"""What the gateway says of the model behind it: its name, its engine, and how long a request may be."""

import time
from dataclasses import dataclass
from typing import Any

from headway.config import HeadwayConfig, resolve_profile
from interp import load_profile
from serve_apps.gateway.prompts import Prompts
from serve_apps.gateway.tokens import Accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The model served. `max_tokens` bounds input and output of one request together."""

    model: str
    engine: str
    max_tokens: int
    text_counts: Accuracy
    created: int

    @property
    def simulated(self) -> bool:
        """Whether no model runs at all."""
        return self.engine == "simulated"

    @property
    def fingerprint(self) -> str:
        """The `system_fingerprint` of responses."""
        return f"headway-{self.engine}"

    def entry(self) -> dict[str, Any]:
        """The model as `/v1/models` lists it."""
        return {
            "id": self.model,
            "object": "model",
            "created": self.created,
            "owned_by": "headway",
            "engine": self.engine,
            "simulated": self.simulated,
            "max_model_tokens": self.max_tokens,
            "token_count": self.text_counts,
        }


def identify(config: HeadwayConfig, prompts: Prompts) -> Identity:
    """The identity that the settings give; ConfigError or ProfileError where the profile can't be used.

    A request may be as long as the model was made for, or where nobody says, as a replica's KV cache.
    """
    capacity = prompts.max_tokens or _kv_capacity(config)
    return Identity(
        model=config.model,
        engine=config.engine.kind,
        max_tokens=min(config.engine.max_model_tokens or capacity, capacity),
        text_counts=prompts.accuracy,
        created=int(time.time()),
    )


def _kv_capacity(config: HeadwayConfig) -> int:
    """Tokens that the KV cache of one replica holds."""
    return int(load_profile(resolve_profile(config.engine.profile)).decode.table.max_kv_tokens)
