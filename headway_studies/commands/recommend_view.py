"""A recommendation as text, as JSON-able data, and as a configuration file to start from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from shlex import quote
from typing import Any

import yaml
from rich.console import Console

from headway.simulation.report import ReportSlo, TraceFigures
from headway.words import duration, percent, plural, scaled, targets
from headway.workload import TraceOptions
from headway_cli.notes import routing_notes
from headway_cli.terminal import bold, print_facts, print_notes, table
from headway_studies.recommend.candidates import Mode
from headway_studies.recommend.fleets import Fleet
from headway_studies.recommend.search import Choice, Row, cheapest, other_policy
from headway_studies.recommend.trials import BUDGET_KEY, Outcome

Document = Mapping[str, Any]

GPU_HOURS = "GPU-hours"
POLICY = "headway"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The trace and how it was read, the SLO, all candidates, and what is recommended, if anything.

    `unit` is that of costs: GPU-hours, or cost where there are prices.
    """

    source: str
    reading: TraceOptions
    trace: TraceFigures
    slo: ReportSlo
    rows: Sequence[Row]
    choice: Choice | None
    unit: str

    def ordered(self) -> list[tuple[str, Row]]:
        """The rows with the names of their modes: the cheapest engine first, and its cheapest mode.

        Chunk sizes of which none was simulated are one row, called by the mode alone.
        """
        of_engine: dict[str, dict[Mode, list[Row]]] = {}
        for row in self.rows:
            here = row.candidate
            of_engine.setdefault(here.engine.name, {}).setdefault(here.mode, []).append(row)
        engines = sorted(
            of_engine.values(), key=lambda modes: _cost([row for rows in modes.values() for row in rows])
        )
        return [
            shown
            for modes in engines
            for rows in sorted(modes.values(), key=_cost)
            for shown in _of_mode(rows)
        ]

    def configuration(self) -> str:
        """The recommended settings as a file, with the command that repeats the figures."""
        if self.choice is None:
            raise ValueError("nothing is recommended")
        tree = self.choice.row.candidate.base.tree(self.choice.outcome.overrides)
        named = " ".join([quote(self.source), *_flags(self.reading)])
        head = (
            f"Written by headway recommend. On {scaled(self.trace.name, self.trace.rate_scale)}, simulated:",
            f"{describe(self.choice)}: {result(self.choice, self.unit)}.",
            f"Again: headway simulate {named} --config THIS_FILE",
        )
        lines = (" ".join(line.split()) for line in head)
        return "".join(f"# {line}\n" for line in lines) + yaml.safe_dump(tree, sort_keys=False)


def _flags(reading: TraceOptions) -> Iterator[str]:
    if reading.format is not None:
        yield f"--format {reading.format}"
    if reading.rate_scale != 1:
        yield f"--rate-scale {reading.rate_scale:g}"
    if reading.start_s:
        yield f"--start {reading.start_s:g}"
    if reading.duration_s is not None:
        yield f"--duration {reading.duration_s:g}"


def describe(choice: Choice) -> str:
    """`mixed replicas of PROFILE, chunks of 512 tokens, policy headway with 6 replicas at most`."""
    here = choice.row.candidate
    mode = "mixed replicas" if here.mode is Mode.MIXED else "split pools"
    chunk = "" if here.chunk_tokens is None else f", chunks of {here.chunk_tokens} tokens"
    return f"{mode} of {here.engine.name}{chunk}, {_how(choice)}"


def _how(choice: Choice) -> str:
    counts = _counts(choice)
    how = f"a fixed fleet of {counts}" if choice.is_fixed else f"policy {POLICY} with {counts} at most"
    budget = choice.outcome.overrides.get(BUDGET_KEY)
    return how if budget is None else f"{how} and {BUDGET_KEY} {budget:g}"


def _counts(choice: Choice) -> str:
    """`4 prefill and 2 decode replicas`, or `1 replica` of a mixed pool."""
    *most, (role, count) = choice.outcome.fleet.items()
    before = "".join(f"{each} {name} and " for name, each in most)
    return before + plural(count, f"{role} replica" if most else "replica")


def result(choice: Choice, unit: str) -> str:
    """`99.7 % ± 0.1 % of the requests, 4.93 GPU-hours`."""
    hours = f"{choice.outcome.gpu_hours:.4g} {GPU_HOURS}"
    cost = "" if unit == GPU_HOURS else f", {unit} {choice.cost:.4g}"
    attained = f"{percent(choice.outcome.attainment)} ± {choice.outcome.noise * 100:.2g} %"
    return f"{attained} of the requests, {hours}{cost}"


def print_recommendation(found: Recommendation, out: Console) -> None:
    """The trace and the SLO, the candidates, what is recommended and what else it could be."""
    trace = found.trace
    named = scaled(trace.name, trace.rate_scale)
    out.print(bold(f"{named}, {plural(trace.requests, 'request')} in {duration(trace.duration_s)}"))
    out.print(f"{targets(found.slo.ttft_s, found.slo.itl_s)}, target {percent(found.slo.attainment)}")
    rows = found.ordered()
    engines = list(dict.fromkeys(row.candidate.engine.name for _, row in rows))
    letters = {name: _letter(place) for place, name in enumerate(engines)}
    print_facts({letters[name]: _engine(name, found) for name in engines}, out)
    head = ["", "mode", "fixed", "attained", found.unit, POLICY, "attained", found.unit]
    lines = (
        [letters[row.candidate.engine.name], label, *cells(_row(row), found.slo.attainment)]
        for label, row in rows
    )
    out.print(table(head, lines, names=2, whole=range(len(head))))
    if found.choice is not None:
        print_facts(sentences(found, found.choice), out)
    print_notes(problems(found), out)


def _letter(place: int) -> str:
    """A to Z, then A1 and so on: names of profiles are too long for a table."""
    again, letter = divmod(place, 26)
    return chr(ord("A") + letter) + (str(again) if again else "")


def _engine(name: str, found: Recommendation) -> str:
    """`PROFILE, h100_sxm: 1 GPU a replica`."""
    row = next(row for row in found.rows if row.candidate.engine.name == name)
    engine, counts = row.candidate.engine, sorted(set(row.facts.gpus_per_replica.values()))
    gpus = " or ".join(map(str, counts)) + (" GPU" if counts == [1] else " GPUs")
    kind = "" if engine.gpu in (None, name) else f", {engine.gpu}"
    price = "" if found.unit == GPU_HOURS else f", {engine.price_per_gpu_hour:g} a GPU-hour"
    return f"{name}{kind}: {gpus} a replica{price}"


def _cost(rows: Sequence[Row]) -> tuple[float, float]:
    """The least that one of the rows costs, and what it would cost at least."""
    return min(row.least for row in rows), min(row.bound for row in rows)


def _of_mode(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    if any(row.fixed for row in rows):
        return [(row.candidate.label, row) for row in sorted(rows, key=lambda row: row.least)]
    alike = len({row.problem is None for row in rows}) == 1
    return [
        (str(row.candidate.mode) if alike else row.candidate.label, row)
        for row in rows[: 1 if alike else None]
    ]


def cells(row: Document, aim: float) -> list[str]:
    """Fleet, attainment and cost of the least fixed fleet and of the policy; `≥ 12` where that is enough."""
    if row["problem"] is not None:
        return ["none", "", "", "", "", ""]
    kept = _cells(row["fixed"], row["cost_at_least"], aim)
    return kept + (_cells(row[POLICY], row["policy_cost_at_least"], aim) if row["fixed"] else ["", "", ""])


def _cells(outcome: Document | None, least: float, aim: float) -> list[str]:
    if outcome is None:
        return ["", "", f"≥ {least:.4g}"]
    fleet = "+".join(str(count) for count in outcome["replicas"].values())
    missed = "" if outcome["attainment"] >= aim else " !"
    return [fleet, percent(outcome["attainment"]) + missed, f"{outcome['cost']:.4g}"]


def sentences(found: Recommendation, choice: Choice) -> dict[str, str]:
    """The recommendation, and the best of what it was chosen over."""
    here, lines = choice.row.candidate, {"Recommended": f"{describe(choice)}: {result(choice, found.unit)}"}
    if (other := other_policy(choice)) is not None:
        title, most = ("Fixed fleet", "") if other.is_fixed else (f"Policy {POLICY}", " at most")
        lines[title] = f"{_counts(other)}{most}: {_beside(other, choice, found.unit)}"
    if (fixed := choice.row.fixed) is not None and fixed.beside:
        near = ", ".join(f"{_sum(fleet)} {percent(attained)}" for fleet, attained in fixed.beside)
        lines["Neighbours"] = f"of {_sum(fixed.fleet)}, simulated: {near}; none that is cheaper meets the SLO"
    if (policy := choice.row.followed) is not None and len(policy.tries) > 1:
        tries = ", ".join(f"{percent(attained)} with {budget:g}" for budget, attained in policy.tries.items())
        lines["Tried again"] = f"{BUDGET_KEY}: policy {POLICY} attained {tries}"
    kinds = {
        "Split pools" if here.mode is Mode.MIXED else "Mixed replicas": [
            row for row in found.rows if row.candidate.mode is not here.mode
        ],
        "Other profiles": [row for row in found.rows if row.candidate.engine is not here.engine],
    }
    return lines | {title: _instead(rows, choice, found.unit) for title, rows in kinds.items() if rows}


def _sum(fleet: Fleet) -> str:
    return "+".join(map(str, fleet.values()))


def _instead(rows: Sequence[Row], choice: Choice, unit: str) -> str:
    """The cheapest of `rows`, simulated or not."""
    best = cheapest(rows)
    if best is not None:
        return f"{describe(best)}: {_beside(best, choice, unit)}"
    bounds = [row for row in rows if row.problem is None]
    if not bounds:
        return "none meets the SLO"
    least = min(bounds, key=lambda row: row.bound)
    name = f"{least.candidate.engine.name}, {least.candidate.mode}"
    hours = f"at least {least.facts.bound_gpu_hours:.4g} {GPU_HOURS}"
    cost = "" if unit == GPU_HOURS else f", {unit} {least.bound:.4g}"
    return f"{name}: {hours}{cost}, {_times(least.bound, choice, unit)}"


def _beside(other: Choice, choice: Choice, unit: str) -> str:
    return f"{result(other, unit)}, {_times(other.cost, choice, unit)}"


def _times(cost: float, choice: Choice, unit: str) -> str:
    """Without prices a cost is GPU-hours, whatever an hour of each GPU costs."""
    return f"{cost / choice.cost:.2f} × {'as many' if unit == GPU_HOURS else 'the cost'}"


def problems(found: Recommendation) -> list[str]:
    """Why candidates cannot meet the SLO, by reason, and what the signs of the table mean."""
    of_reason: dict[str, list[Row]] = {}
    for row in found.rows:
        if row.problem is not None:
            of_reason.setdefault(row.problem, []).append(row)
    lines = [f"{_together(rows)}: {reason}" for reason, rows in of_reason.items()]
    if any(row.problem is None and (row.fixed is None or row.followed is None) for row in found.rows):
        lines.append("≥: costs at least that, by the work or the pools' minimums; not simulated")
    if any(row.followed and row.followed.attainment < row.aim for row in found.rows):
        lines.append("!: misses the target")
    routings = (row.candidate.base.config().routing for row in found.rows[:1])
    return [*lines, *(note for routing in routings for note in routing_notes(routing))]


def _together(rows: Sequence[Row]) -> str:
    """`PROFILE mixed 512, 2048, 8192`."""
    names: dict[str, list[str]] = {}
    for row in rows:
        here = row.candidate
        of_mode = names.setdefault(f"{here.engine.name} {here.mode}", [])
        of_mode += [] if here.chunk_tokens is None else [str(here.chunk_tokens)]
    return "; ".join(" ".join([name, ", ".join(chunks)]).strip() for name, chunks in names.items())


def nothing_found(found: Recommendation) -> str:
    """The one line where nothing meets the SLO."""
    best = max(found.rows, key=lambda row: row.facts.attainable)
    slo = targets(found.slo.ttft_s, found.slo.itl_s, " and ")
    return (
        f"nothing that was tried meets {slo} for "
        f"{percent(found.slo.attainment)} of requests; "
        f"{best.candidate.engine.name} {best.candidate.label}: {best.problem}"
    )


def document(found: Recommendation) -> dict[str, Any]:
    """The recommendation as JSON-able data; `shown` are the candidates of the table and their labels."""
    choice = found.choice
    places = {id(row): place for place, row in enumerate(found.rows)}
    return {
        "trace": asdict(found.trace),
        "slo": asdict(found.slo),
        "unit": found.unit,
        "candidates": [_row(row) for row in found.rows],
        "shown": [{"candidate": places[id(row)], "label": label} for label, row in found.ordered()],
        "recommended": None if choice is None else _choice(found, choice),
        "nothing": nothing_found(found) if choice is None else None,
        "notes": problems(found),
    }


def _choice(found: Recommendation, choice: Choice) -> dict[str, Any]:
    here = choice.row.candidate
    return {
        **_named(choice.row),
        "policy": "static" if choice.is_fixed else POLICY,
        **_outcome(choice.row, choice.outcome),
        "configuration": here.base.tree(choice.outcome.overrides),
        "sentences": sentences(found, choice),
        "simulation": choice.outcome.report.document(),
    }


def _named(row: Row) -> dict[str, Any]:
    here = row.candidate
    return {
        "profile": here.engine.name,
        "gpu": here.engine.gpu,
        "mode": here.mode.value,
        "chunk_tokens": here.chunk_tokens,
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        **_named(row),
        "price_per_gpu_hour": row.price,
        "gpus_per_replica": _by_role(row.facts.gpus_per_replica),
        "attainable": row.facts.attainable,
        "cost_at_least": row.bound,
        "policy_cost_at_least": row.floor,
        "fixed": None if row.fixed is None else _outcome(row, row.fixed),
        "headway": None if row.followed is None else _outcome(row, row.followed),
        "problem": row.problem,
    }


def _outcome(row: Row, outcome: Outcome) -> dict[str, Any]:
    return {
        "replicas": _by_role(outcome.fleet),
        "attainment": outcome.attainment,
        "attainment_half_width": outcome.noise,
        "neighbours": [{"replicas": _by_role(fleet), "attainment": share} for fleet, share in outcome.beside],
        "tries": [{"loss_budget": budget, "attainment": share} for budget, share in outcome.tries.items()],
        "gpu_hours": outcome.gpu_hours,
        "cost": row.cost(outcome),
    }


def _by_role(counts: Mapping[Any, int]) -> dict[str, int]:
    return {role.value: count for role, count in counts.items()}
