"""A set-up for `headway queue-sim` as a YAML file; examples/queue-sim.yaml is one.

patterns:  {NAME: {arrival_rps, slo_s}}
consumers: a list of {name, count, patterns: {NAME: {throughput_rps, latency_s}}}, one item per GPU type
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator, model_validator

from headway.config.base import PositiveFloat, PositiveInt, Settings
from headway.config.errors import ConfigError
from headway.config.faults import describe
from headway.config.reading import read_yaml
from headway.simulation.queueing import Consumer, Pattern, Profile, QueueingError, Setup

MOST = 1e6
MOST_CONSUMERS = 10_000
MOST_PATTERNS = 100

Rate = Annotated[PositiveFloat, Field(le=MOST)]
Seconds = Annotated[PositiveFloat, Field(ge=1 / MOST, le=MOST)]
Name = Annotated[str, Field(min_length=1, max_length=60)]


class PatternSettings(Settings):
    """A producer."""

    arrival_rps: Rate
    slo_s: Seconds


class ProfileSettings(Settings):
    """What a GPU type does with a pattern."""

    throughput_rps: Rate
    latency_s: Seconds

    @model_validator(mode="after")
    def _can_run(self) -> "ProfileSettings":
        self.profile()
        return self

    def profile(self) -> Profile:
        """The value that the simulator takes."""
        return Profile(throughput_rps=self.throughput_rps, latency_s=self.latency_s)


class ConsumerSettings(Settings):
    """A GPU type, and how many there are."""

    name: Name
    count: Annotated[PositiveInt, Field(le=MOST_CONSUMERS)] = 1
    patterns: Annotated[dict[Name, ProfileSettings], Field(min_length=1)]


class SetupSettings(Settings):
    """The file."""

    patterns: Annotated[dict[Name, PatternSettings], Field(min_length=1, max_length=MOST_PATTERNS)]
    consumers: Annotated[list[ConsumerSettings], Field(min_length=1)]

    @field_validator("consumers")
    @classmethod
    def _not_too_many(cls, consumers: list[ConsumerSettings]) -> list[ConsumerSettings]:
        if (count := sum(one.count for one in consumers)) > MOST_CONSUMERS:
            raise ValueError(f"{count} consumers in all, at most {MOST_CONSUMERS} are simulated")
        return consumers


def read_setup(path: Path) -> Setup:
    """The set-up in a file; ConfigError has one line: file, key, fault."""
    tree: dict[str, Any] = read_yaml(path)
    try:
        settings = SetupSettings.model_validate(tree)
    except ValidationError as error:
        key, fault = describe(error, SetupSettings.model_json_schema())
        raise ConfigError(f"{path}: {key}: {fault}" if key else f"{path}: {fault}") from error
    try:
        return _setup(path.name, settings)
    except QueueingError as error:
        raise ConfigError(f"{path}: {error}") from error


def _setup(name: str, settings: SetupSettings) -> Setup:
    return Setup(
        name=name,
        patterns=tuple(
            Pattern(name=pattern, arrival_rps=given.arrival_rps, slo_s=given.slo_s)
            for pattern, given in settings.patterns.items()
        ),
        consumers=tuple(one for given in settings.consumers for one in _alike(given)),
    )


def _alike(settings: ConsumerSettings) -> tuple[Consumer, ...]:
    profiles = {name: given.profile() for name, given in settings.patterns.items()}
    return (Consumer(kind=settings.name, profiles=profiles),) * settings.count
