"""The flags of `headway queue-sim` → an experiment; CliError names the flag that cannot be used."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import TypeVar

from headway.simulation.queueing import (
    SETUPS,
    Amount,
    Duration,
    Experiment,
    Passing,
    Policy,
    QueueingError,
    QueuePolicy,
    Requests,
    Routing,
    Service,
    Setup,
    all_policies,
)
from headway_cli.errors import CliError
from headway_cli.queue_sim_file import MOST_CONSUMERS, read_setup

DEFAULT_REQUESTS = 4_000
MOST_REQUESTS = 10_000_000
MOST_SEEDS = 10_000
LEAST_SCALE, MOST_SCALE = 1e-6, 1e6

Choice = TypeVar("Choice", bound=Enum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The flags as they were given."""

    setup: str
    policies: str | None
    seeds: int
    requests: int | None
    duration_s: float | None
    consumers: int | None
    rate_scale: float
    service: str
    passing: str


def experiment_of(asked: Asked) -> Experiment:
    """What to run."""
    setup = _setup(asked)
    passing = _choice("--passing", asked.passing, Passing)
    _within("--seeds", asked.seeds, 1, MOST_SEEDS)
    return Experiment(
        setup=setup,
        policies=parse_policies(asked.policies, passing),
        seeds=asked.seeds,
        amount=_amount(asked, setup),
        service=_choice("--service", asked.service, Service),
    )


def parse_policies(text: str | None, passing: Passing) -> tuple[Policy, ...]:
    """`least-load-pull:slo,random-push`; a routing without a queue policy means all, no text everything."""
    if text is None:
        return all_policies(passing=passing)
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise CliError("--policies: names no policy")
    policies = tuple(policy for item in items for policy in _policies(item, passing))
    if len(set(policies)) < len(policies):
        twice = next(policy for policy in policies if policies.count(policy) > 1)
        raise CliError(f"--policies: {twice.label} comes twice")
    return policies


def _policies(item: str, passing: Passing) -> tuple[Policy, ...]:
    name, colon, queue = item.partition(":")
    routing = _choice("--policies", name, Routing)
    if not colon:
        return all_policies((routing,), passing)
    return (Policy(routing=routing, queue=_choice("--policies", queue, QueuePolicy), passing=passing),)


def _setup(asked: Asked) -> Setup:
    setup = SETUPS[asked.setup] if asked.setup in SETUPS else _from_file(asked.setup)
    _within("--rate-scale", asked.rate_scale, LEAST_SCALE, MOST_SCALE)
    if asked.consumers is not None:
        _within("--consumers", asked.consumers, 1, MOST_CONSUMERS)
        try:
            setup = setup.resized(asked.consumers)
        except QueueingError as error:
            raise CliError(f"--consumers: {error}") from error
    return setup.scaled(asked.rate_scale)


def _from_file(place: str) -> Setup:
    path = Path(place)
    if not path.suffix and not path.exists():
        raise CliError(f"--setup: unknown {place!r}; known: {', '.join(SETUPS)}, or a YAML file")
    return read_setup(path)


def _amount(asked: Asked, setup: Setup) -> Amount:
    if asked.duration_s is None:
        count = DEFAULT_REQUESTS if asked.requests is None else asked.requests
        _within("--requests", count, 1, MOST_REQUESTS)
        return Requests(count)
    if asked.requests is not None:
        raise CliError("--duration: cannot be combined with --requests")
    if not (isfinite(asked.duration_s) and asked.duration_s > 0):
        raise CliError(f"--duration: must be a number of seconds above 0, got {asked.duration_s:g}")
    if (expected := setup.arrival_rps * asked.duration_s) > MOST_REQUESTS:
        raise CliError(f"--duration: about {expected:.3g} requests, at most {MOST_REQUESTS:,} are simulated")
    return Duration(asked.duration_s)


def _within(flag: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise CliError(f"{flag}: must be between {least:,g} and {most:,.0f}, got {value:g}")


def _choice(flag: str, text: str, kind: type[Choice]) -> Choice:
    known: Mapping[str, Choice] = {member.value: member for member in kind}
    if text not in known:
        raise CliError(f"{flag}: unknown {text!r}; known: {', '.join(known)}")
    return known[text]
