"""Deployments that share a GPU budget as a YAML file, for `headway share`; examples/share.yaml is one.

gpus:        the budget
deployments: a list of {name, trace, rate_scale, start_s, duration_s, priority, weight, part,
             config, settings}

`trace` and `config` are looked for beside the file, then as they are. `settings` are dotted keys that lie
over `config`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator, model_validator

from headway.config import load_config
from headway.config.base import NonNegativeFloat, PositiveFloat, PositiveInt, Settings
from headway.config.errors import ConfigError
from headway.config.faults import describe
from headway.config.loading import OPTIONS
from headway.config.reading import read_yaml
from headway.workload import TraceOptions
from headway_cli.job import Job

MOST_GPUS = 100_000


class SharedDeployment(Settings):
    """One deployment. The highest priority comes first; `part` is what it gets of a budget that is split."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    trace: str
    priority: int = 0
    weight: PositiveFloat = 1.0
    part: PositiveInt | None = None
    rate_scale: PositiveFloat = 1.0
    start_s: NonNegativeFloat = 0.0
    duration_s: PositiveFloat | None = None
    config: str | None = None
    settings: Mapping[str, Any] = Field(default_factory=dict)

    def job(self, file: Path, max_gpus: int | None = None) -> Job:
        """Its simulation; alone in `max_gpus` where they are given. The policy is always `headway`.

        `file` is where this was read. ConfigError has one line: file, name, key, fault.
        """
        config = None if self.config is None else _found(self.config, file.parent)
        policy = {"planner.policy": "headway", "planner.max_gpu_budget": max_gpus}
        try:
            made = load_config(config, {**self.settings, **policy})
        except ConfigError as error:
            raise ConfigError(f"{file}: {self.name}: {str(error).removeprefix(f'{OPTIONS}: ')}") from error
        options = TraceOptions(
            start_s=self.start_s,
            duration_s=self.duration_s,
            rate_scale=self.rate_scale,
            seed=made.simulation.seed,
        )
        trace, source = _found(self.trace, file.parent), f"{file}: {self.name}"
        return Job(trace=trace, config=made, options=options, label=self.name, settings_file=source)


class SharedBudget(Settings):
    """The file."""

    gpus: Annotated[PositiveInt, Field(le=MOST_GPUS)]
    deployments: Annotated[list[SharedDeployment], Field(min_length=1, max_length=1000)]

    @field_validator("deployments")
    @classmethod
    def _distinct(cls, deployments: list[SharedDeployment]) -> list[SharedDeployment]:
        names = [one.name for one in deployments]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"the name {twice[0]!r} is there twice")
        return deployments

    @model_validator(mode="after")
    def _parts_fit(self) -> "SharedBudget":
        stated = [one.part for one in self.deployments if one.part is not None]
        if stated and len(stated) < len(self.deployments):
            raise ValueError("either all deployments have a part or none")
        if sum(stated) > self.gpus:
            raise ValueError(f"the parts are {sum(stated)} GPUs, the budget is {self.gpus}")
        return self

    def parts(self, minimums: Mapping[str, int], used: Mapping[str, float]) -> Mapping[str, int]:
        """Fixed parts of the budget: those of the file, else minimums and the rest as it was `used`."""
        stated = {one.name: one.part for one in self.deployments if one.part is not None}
        return stated or _in_proportion(self.gpus, minimums, used)


def _in_proportion(gpus: int, minimums: Mapping[str, int], used: Mapping[str, float]) -> Mapping[str, int]:
    """Whole parts by largest remainder."""
    spare, total = gpus - sum(minimums.values()), sum(used.values()) or 1.0
    exact = {name: least + spare * used[name] / total for name, least in minimums.items()}
    parts = {name: int(part) for name, part in exact.items()}
    for name in sorted(exact, key=lambda name: parts[name] - exact[name])[: gpus - sum(parts.values())]:
        parts[name] += 1
    return parts


def read_shared(path: Path) -> SharedBudget:
    """The deployments in a file; ConfigError has one line: file, key, fault."""
    try:
        return SharedBudget.model_validate(read_yaml(path))
    except ValidationError as error:
        key, fault = describe(error, SharedBudget.model_json_schema())
        raise ConfigError(f"{path}: {key}: {fault}" if key else f"{path}: {fault}") from error


def _found(place: str, beside: Path) -> str:
    return str(beside / place) if (beside / place).is_file() else place
