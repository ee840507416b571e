"""`headway queue-sim`: push and pull routing with simple and SLO-aware queues, on patterns and consumers.

A set-up is built in or a YAML file (examples/queue-sim.yaml is one):

    patterns:  {NAME: {arrival_rps, slo_s}}
    consumers: a list of {name, count, patterns: {NAME: {throughput_rps, latency_s}}}, one item per GPU type
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, field_validator, model_validator

from headway.config.base import ConfigError, PositiveFloat, PositiveInt, Settings
from headway.config.yaml_file import read_settings
from headway_cli.errors import CliError
from headway_cli.flags import option, spread
from headway_cli.options import listed
from headway_cli.output import JsonFile, check_outputs, deliver
from headway_cli.terminal import bar
from headway_studies.commands.queue_sim_view import make_document, print_document, render
from headway_studies.queue_simulator.experiment import Experiment, run_experiment
from headway_studies.queue_simulator.load import Amount, RequestCount, RunDuration, Service
from headway_studies.queue_simulator.model import SETUPS, Consumer, Pattern, Profile, QueueingError, Setup
from headway_studies.queue_simulator.waiting import (
    DispatchPolicy,
    DispatchRouting,
    Passing,
    QueuePolicy,
    all_policies,
)

DEFAULT_REQUESTS = 4_000
MOST_REQUESTS = 10_000_000
MOST_SEEDS = 10_000
LEAST_SCALE, MOST_SCALE = 1e-6, 1e6
Choice = TypeVar("Choice", bound=Enum)
MOST = 1e6
MOST_CONSUMERS = 10_000
MOST_PATTERNS = 100
Rate = Annotated[PositiveFloat, Field(le=MOST)]
Seconds = Annotated[PositiveFloat, Field(ge=1 / MOST, le=MOST)]
Name = Annotated[str, Field(min_length=1, max_length=60)]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSimOptions:
    """The experiment as flags."""

    setup: Annotated[str, option("NAME", "ideal-single, ideal-double, multi, or a YAML file.")] = "multi"
    policies: Annotated[
        str | None,
        option(
            "LIST",
            "Separated by commas: random-push, least-load-push, least-load-pull, bin-pack-pull, each "
            "with :simple, :slo or :slo-savable, or without for all three. Else everything.",
        ),
    ] = None
    seeds: Annotated[int, option("N", "Independent runs of each policy.")] = 20
    requests: Annotated[int | None, option("N", "Requests in a run; else 4000.")] = None
    duration: Annotated[float | None, option("S", "Or: the requests that arrive in S seconds.")] = None
    consumers: Annotated[int | None, option("N", "GPUs, where all are of one type; else the set-up's.")] = (
        None
    )
    rate_scale: Annotated[float, option("K", "Arrival rates times K.")] = 1.0
    service: Annotated[str, option("KIND", "Latencies: deterministic, or exponential with that mean.")] = (
        "deterministic"
    )
    passing: Annotated[
        str,
        option(
            "WHEN",
            "When bin-pack-pull may start a request before one that does not fit: never, slack (while "
            "that one can still meet its SLO), always.",
        ),
    ] = "slack"


@spread(QueueSimOptions)
def queue_sim(
    *,
    options: QueueSimOptions,
    json: JsonFile = None,
    plot: Annotated[str | None, option("FILE", "Write charts as an HTML page.")] = None,
) -> None:
    """Compare push and pull, simple and SLO-aware queues: waits and SLO violations, over many seeds."""
    check_outputs({"--json": json, "--plot": plot}, (options.setup,))
    experiment = experiment_of(options)
    with bar(f"{options.seeds} seeds of {len(experiment.policies)} policies") as report:
        document = make_document(experiment, run_experiment(experiment, report))
    print_document(document, deliver(json, plot, lambda: document, lambda: render(document)))


def experiment_of(options: QueueSimOptions) -> Experiment:
    """The set-up, policies and amounts that the flags name."""
    setup = _chosen_setup(options)
    passing = _choice("--passing", options.passing, Passing)
    _within("--seeds", options.seeds, 1, MOST_SEEDS)
    return Experiment(
        setup=setup,
        policies=parse_policies(options.policies, passing),
        seeds=options.seeds,
        amount=_amount(options, setup),
        service=_choice("--service", options.service, Service),
    )


def parse_policies(text: str | None, passing: Passing) -> tuple[DispatchPolicy, ...]:
    """`least-load-pull:slo,random-push`; a routing without a queue policy means all, no text everything."""
    if text is None:
        return all_policies(passing=passing)
    policies = tuple(policy for item in listed("--policies", text) for policy in _policies(item, passing))
    if len(set(policies)) < len(policies):
        twice = next(policy for policy in policies if policies.count(policy) > 1)
        raise CliError(f"--policies: {twice.label} comes twice")
    return policies


def _policies(item: str, passing: Passing) -> tuple[DispatchPolicy, ...]:
    name, colon, queue = item.partition(":")
    routing = _choice("--policies", name, DispatchRouting)
    if not colon:
        return all_policies((routing,), passing)
    return (
        DispatchPolicy(routing=routing, queue=_choice("--policies", queue, QueuePolicy), passing=passing),
    )


def _chosen_setup(options: QueueSimOptions) -> Setup:
    path = Path(options.setup)
    if options.setup not in SETUPS and not path.suffix and not path.exists():
        raise CliError(f"--setup: unknown {options.setup!r}; known: {', '.join(SETUPS)}, or a YAML file")
    setup = SETUPS[options.setup] if options.setup in SETUPS else read_setup(path)
    _within("--rate-scale", options.rate_scale, LEAST_SCALE, MOST_SCALE)
    if options.consumers is not None:
        _within("--consumers", options.consumers, 1, MOST_CONSUMERS)
        try:
            setup = setup.resized(options.consumers)
        except QueueingError as error:
            raise CliError(f"--consumers: {error}") from error
    return setup.scaled(options.rate_scale)


def _amount(options: QueueSimOptions, setup: Setup) -> Amount:
    if options.duration is None:
        count = DEFAULT_REQUESTS if options.requests is None else options.requests
        _within("--requests", count, 1, MOST_REQUESTS)
        return RequestCount(count)
    if options.requests is not None:
        raise CliError("--duration: cannot be combined with --requests")
    if not (isfinite(options.duration) and options.duration > 0):
        raise CliError(f"--duration: must be a number of seconds above 0, got {options.duration:g}")
    if (expected := setup.arrival_rps * options.duration) > MOST_REQUESTS:
        raise CliError(f"--duration: about {expected:.3g} requests, at most {MOST_REQUESTS:,} are simulated")
    return RunDuration(options.duration)


def _within(flag: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise CliError(f"{flag}: must be between {least:,g} and {most:,.0f}, got {value:g}")


def _choice(flag: str, text: str, kind: type[Choice]) -> Choice:
    known: Mapping[str, Choice] = {member.value: member for member in kind}
    if text not in known:
        raise CliError(f"{flag}: unknown {text!r}; known: {', '.join(known)}")
    return known[text]


class PatternSettings(Settings):
    """A producer."""

    arrival_rps: Rate
    slo_s: Seconds


class ProfileSettings(Settings):
    """A GPU type's performance on a pattern."""

    throughput_rps: Rate
    latency_s: Seconds

    @model_validator(mode="after")
    def _can_run(self) -> "ProfileSettings":
        self.profile()
        return self

    def profile(self) -> Profile:
        """The value that the simulator takes."""
        return Profile(**dict(self))


class ConsumerSettings(Settings):
    """A GPU type, and how many there are."""

    name: Name
    count: Annotated[PositiveInt, Field(le=MOST_CONSUMERS)] = 1
    patterns: Annotated[dict[Name, ProfileSettings], Field(min_length=1)]

    def consumers(self) -> tuple[Consumer, ...]:
        """All of this type, as the simulator takes them."""
        profiles = {name: given.profile() for name, given in self.patterns.items()}
        return (Consumer(kind=self.name, profiles=profiles),) * self.count


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
    settings = read_settings(path, SetupSettings)
    try:
        return Setup(
            name=path.name,
            patterns=tuple(Pattern(name=name, **dict(given)) for name, given in settings.patterns.items()),
            consumers=tuple(one for given in settings.consumers for one in given.consumers()),
        )
    except QueueingError as error:
        raise ConfigError(f"{path}: {error}") from error
