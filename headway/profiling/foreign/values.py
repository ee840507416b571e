"""A profile that came from elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from interp import DecodeSamples, PrefillSamples


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForeignProfile:
    """The tables of one engine on `tp` GPUs, and what meta.json should say of them."""

    tp: int
    prefill: PrefillSamples
    decode: DecodeSamples
    meta: Mapping[str, Any]
