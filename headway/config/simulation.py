"""Settings that only a simulation reads: seed, start-up delays, the first fleet, crashes."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, field_validator

from headway.config.base import NonNegativeFloat, NonNegativeInt, PositiveInt, RoleName, Settings
from headway.config.faults import shown


class Crash(Settings):
    """One replica of `role` dies at `at_s` seconds of simulated time."""

    at_s: NonNegativeFloat
    role: RoleName


class SimulationSettings(Settings):
    """How a simulation starts, and what befalls it."""

    seed: NonNegativeInt = Field(default=0, lt=2**63)
    start_up_delay_s: NonNegativeFloat = Field(default=60.0, le=1e6)
    """Mean seconds from the decision for a replica until it is ready."""
    start_up_delay_cv: NonNegativeFloat = Field(default=0.0, le=10)
    """Coefficient of variation of that delay, lognormal; 0: always the mean."""
    initial: Literal["sized", "min"] | Mapping[RoleName, PositiveInt] = "sized"
    """The fleet at time 0: sized for the first interval's load, each pool's minimum, or counts per role."""
    drain_limit_s: NonNegativeFloat = Field(default=14_400.0, le=1e9)
    """Seconds after the trace in which requests may still end; those that have not count as failed."""
    crashes: tuple[Crash, ...] = ()

    @field_validator("initial", mode="wrap")
    @classmethod
    def _one_message(cls, value: Any, validate: ValidatorFunctionWrapHandler) -> Any:  # noqa: ANN401
        try:
            return validate(value)
        except ValidationError as error:
            wanted = "'sized', 'min' or positive replica counts such as {prefill: 2, decode: 3}"
            raise ValueError(f"should be {wanted}, not {shown(value)}") from error
