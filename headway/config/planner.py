"""Settings of the planner: which policy, which predictor, and the sections of single policies.

Names of policies and predictors are checked by their registries (`headway.planning.make_policy`,
`predictors.make`), which list the known ones. The section `planner.NAME` belongs to the policy NAME, built in
or from an installed package, and is checked by the settings model that the policy declares.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, tzinfo
from typing import Annotated, Any, Protocol, runtime_checkable
from zoneinfo import ZoneInfo

from pydantic import Field, create_model, field_validator, model_validator

from headway.config.base import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ReplicaCount,
    RoleName,
    Settings,
    shown,
)
from headway.extensions import ExtensionError, ExtensionPoint


@runtime_checkable
class DeclaresSettings(Protocol):
    """The part of a policy's declaration (`headway.planning.PolicyKind`) that configuration reads."""

    @property
    def settings(self) -> type[Settings] | None:
        """The model of the policy's section; None: it has none."""


POLICIES = ExtensionPoint(
    "headway.policies",
    "policy",
    {
        "headway": "headway.planning.hindsight:HEADWAY",
        "reference": "headway.planning.reference:REFERENCE",
        "static": "headway.planning.baselines:STATIC",
        "threshold": "headway.planning.baselines:THRESHOLD",
    },
)
"""All policies: each name is declared by a `headway.planning.PolicyKind`."""


MOST_GPUS = 100_000


class AdviceSettings(Settings):
    """What it takes to say what a plan would be worth in a dry run, and is worth once it acts."""

    price_per_gpu_hour: PositiveFloat | None = Field(default=None, le=1e9)
    """Of a GPU of this deployment; null: that of the type in `gpu_types` that has the deployment's
    `engine.profile`, or of the only one. Without a price no money is shown."""
    currency: str = Field(default="", max_length=8)
    """Written before amounts, such as $; letters, as EUR, after them."""
    start_up_s: NonNegativeFloat | None = Field(default=None, le=1e5)
    """Seconds that a replica is taken to start; null: as seen of the real fleet, before the first start
    60."""
    against: Mapping[RoleName, ReplicaCount] = {}
    """By role, the replicas that acting is compared with (docs/advising.md#once-it-acts); empty: those
    that stood there when a dry run ended that came before the first action."""


def time_zone(name: str) -> tzinfo:
    """The zone of that IANA name. ValueError where this host's database does not have it; UTC needs none."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"{shown(name)} is not in this host's database of time zones (names such as Europe/Berlin; "
            "a host without the database needs the package tzdata)"
        ) from error


class FleetSettings(Settings):
    """What all deployments of a cluster have in common."""

    gpus: Annotated[PositiveInt, Field(le=MOST_GPUS)] | None = None
    """GPUs that all of them together may hold, divided by priority, then by what they save (docs/fleet.md);
    null: each plans by its own limits alone. In a file with `deployments` also by GPU type, such as
    {H100: 8, L20: 4}: each deployment shares those of its `engine.gpu_type`."""
    host_memory: Annotated[PositiveFloat, Field(le=1e18)] | None = None
    """With `gpus`: bytes of host memory, on the hosts of each GPU type, for engines that sleep. The planner
    chooses which of `pools.NAME.sleepers` are worth theirs (docs/fleet.md#engines-that-sleep); null: any."""
    gpu_type: str = ""
    """The GPU type of that budget; a file with `deployments` gives it."""
    application: str = ""
    """The Serve application whose gateway serves this deployment; `headway up` gives it for a file with
    `deployments`."""


class ShareSettings(Settings):
    """What a deployment may claim of `fleet.gpus`."""

    priority: int = 0
    """A higher one comes first, whatever the others lose."""
    weight: PositiveFloat = 1.0
    """The worth of a request beside those of others of the same priority."""
    floor_gpus: Annotated[NonNegativeInt, Field(le=MOST_GPUS)] = 0
    """Of what it wants it has so many GPUs before any priority."""
    ceiling_gpus: PositiveInt | None = None
    """It never has more; null: no bound."""
    lend: Annotated[NonNegativeFloat, Field(le=1.0)] = 1.0
    """The share of the floor that others may hold while it does not want it; the rest stays free for it."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> "ShareSettings":
        if self.ceiling_gpus is not None and self.ceiling_gpus < self.floor_gpus:
            raise ValueError(f"ceiling_gpus {self.ceiling_gpus} is below floor_gpus {self.floor_gpus}")
        return self


class PlannerSettings(Settings, extra="allow"):
    """The planner: policy, forecasts, interval and budget."""

    policy: str = "headway"
    """headway, reference, threshold, static, or one of an installed package (docs/extending.md#a-policy)."""
    predictor: str = "kalman"
    """For `reference`: constant, arima, kalman, prophet, daily, weekly. `headway` asks those of
    `planner.headway.predictors`."""
    predictor_options: Mapping[str, Any] = Field(default_factory=dict)
    """Of that predictor, such as `minimum_points`."""
    adjustment_interval_s: PositiveFloat | None = None
    """Seconds between two decisions; null: 30 for `headway`, 180 for `reference` and `static`.
    `threshold` has a key of its own."""
    max_gpu_budget: PositiveInt | None = None
    """GPUs that all pools together may occupy; null: only `max_replicas` bounds them."""
    max_step: PositiveInt | None = None
    """Replicas by which one decision may change a pool, up or down, under every policy; null: any number.
    Replica limits and GPU budget come first; the reasons of a decision say where it cut (`limits`, with
    the policy's own counts as `wished`)."""
    time_zone: str = "UTC"
    """Of all `pools.ROLE.schedule`: an IANA name such as Europe/Berlin. Names other than UTC need a host with
    the database of time zones, or the package tzdata."""
    no_correction: bool = False
    """Keep both correction factors of the `reference` policy at 1."""
    dry_run: bool = False
    """Live: decide and log, but set nothing; say what the plan would have been worth (docs/advising.md)."""
    advice: AdviceSettings = AdviceSettings()
    tick_deadline_s: PositiveFloat | None = None
    """Live: seconds that one tick may take; null: half an interval, at most 30."""
    load_predictor_warmup_trace: str | None = None
    """A trace that predictors, and the policy `headway`, see before the first decision
    (docs/planning.md#warm-up-trace)."""

    @property
    def sections(self) -> Mapping[str, Settings]:
        """The sections given, by the name of their policy."""
        return self.model_extra or {}

    def section(self, policy: str) -> Settings | None:
        """The settings of one policy: its section, or the defaults of it; None: it has no section."""
        model = _section_model(policy)
        return self.sections.get(policy) or (None if model is None else model())

    @field_validator("time_zone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        time_zone(name)
        return name

    @model_validator(mode="before")
    @classmethod
    def _policies_check_their_sections(cls, given: Any) -> Any:  # noqa: ANN401 - whatever the file holds
        if not isinstance(given, Mapping) or given.keys() <= cls.model_fields.keys():
            return given
        others = {key: value for key, value in given.items() if key not in cls.model_fields}
        # A model of just these sections: its errors carry dotted keys, and unknown keys are among them.
        model = create_model(
            "Sections", __base__=Settings, **_section_fields(filter(POLICIES.__contains__, others))
        )
        sections = model.model_validate(others)
        return {**given, **{name: getattr(sections, name) for name in others}}


def planner_model() -> type[PlannerSettings]:
    """The planner's settings with the sections of all policies as fields, for the published schema."""
    return create_model(
        "PlannerSettings",
        __base__=PlannerSettings,
        __doc__=PlannerSettings.__doc__,
        __cls_kwargs__={"extra": "forbid"},
        **_section_fields(filter(_loads, POLICIES.names())),
    )


def _section_fields(policies: Iterable[str]) -> dict[str, Any]:
    """Fields for `create_model`: the sections of these policies, as far as they have one."""
    models = {name: _section_model(name) for name in policies}
    return {name: (model, model()) for name, model in models.items() if model is not None}


def _loads(policy: str) -> bool:
    try:
        _section_model(policy)
    except ValueError:
        return False
    return True


def _section_model(policy: str) -> type[Settings] | None:
    try:
        declared = POLICIES.load(policy)
    except ExtensionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(declared, DeclaresSettings):
        raise ValueError(f"policy {policy!r} is declared by {type(declared).__name__}, not by a PolicyKind")
    return declared.settings
