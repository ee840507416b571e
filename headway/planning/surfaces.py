"""What planning asks of a performance profile; `interp.Profile` has it, and so has a calibrated one."""

from typing import Protocol, SupportsFloat


class BestPoint(Protocol):
    """The best operating point under an ITL target; the point of least ITL when `feasible` is false."""

    @property
    def throughput_per_gpu(self) -> SupportsFloat:
        """Output tokens per second and GPU."""

    @property
    def itl_s(self) -> SupportsFloat:
        """ITL there, in seconds."""

    @property
    def feasible(self) -> object:
        """Whether that ITL meets the target."""

    @property
    def extrapolated(self) -> object:
        """Whether the profile was not sampled there."""


class PrefillSurface(Protocol):
    """Prefill of one request at a time, over its uncached input tokens."""

    @property
    def gpus_per_engine(self) -> int:
        """GPUs of the profiled engine."""

    def ttft_s(self, isl_tokens: float, /) -> SupportsFloat:
        """TTFT in seconds without queueing."""

    def throughput_per_gpu(self, isl_tokens: float, /) -> SupportsFloat:
        """Input tokens per second and GPU."""

    def extrapolated(self, isl_tokens: float, /) -> object:
        """Whether the profile was not sampled there."""


class DecodeTable(Protocol):
    """What planning reads of the decode table."""

    @property
    def max_kv_tokens(self) -> SupportsFloat:
        """Tokens that the engine's KV cache holds."""


class DecodeSurface(Protocol):
    """Continuous decoding, over KV usage (0..1) and mean context (tokens)."""

    @property
    def gpus_per_engine(self) -> int:
        """GPUs of the profiled engine."""

    @property
    def table(self) -> DecodeTable:
        """The table behind the surface."""

    def itl_s(self, kv_usage: float, context_tokens: float, /) -> SupportsFloat:
        """ITL in seconds."""

    def best_throughput_per_gpu(self, itl_s: float, context_tokens: float, /) -> BestPoint:
        """The highest throughput whose ITL meets `itl_s`."""


class Surfaces(Protocol):
    """The two surfaces of one engine."""

    @property
    def prefill(self) -> PrefillSurface:
        """The prefill surface."""

    @property
    def decode(self) -> DecodeSurface:
        """The decode surface."""
