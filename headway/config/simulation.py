"""Settings that only a simulation reads: seed, start-up delays, the first fleet, crashes."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from headway.config.base import RoleName, Settings


class Crash(Settings):
    """One replica of `role` dies at `at_s` seconds of simulated time."""

    at_s: NonNegativeFloat
    role: RoleName


class SimulationSettings(Settings):
    """How a simulation starts, and what befalls it."""

    seed: NonNegativeInt = 0
    start_up_delay_s: NonNegativeFloat = 60.0
    """Mean seconds from the decision for a replica until it is ready."""
    start_up_delay_cv: NonNegativeFloat = 0.0
    """Coefficient of variation of that delay, lognormal; 0: always the mean."""
    initial: Literal["sized", "min"] | Mapping[RoleName, PositiveInt] = "sized"
    """The fleet at time 0: sized for the first interval's load, each pool's minimum, or counts per role."""
    drain_limit_s: NonNegativeFloat = 14_400.0
    """Seconds after the trace in which requests may still end; those that have not count as failed."""
    crashes: tuple[Crash, ...] = ()

    @field_validator("initial", mode="wrap")
    @classmethod
    def _one_message(cls, value: Any, validate: ValidatorFunctionWrapHandler) -> Any:  # noqa: ANN401
        try:
            return validate(value)
        except ValidationError as error:
            wanted = "'sized', 'min' or positive replica counts such as {prefill: 2, decode: 3}"
            raise ValueError(f"should be {wanted}, not {value!r}") from error
