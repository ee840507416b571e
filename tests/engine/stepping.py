"""Driving the engine model one iteration at a time, for its tests."""

from dataclasses import dataclass, field

from headway.engine import EngineRules, LiveEngine
from headway.planning.types import Role
from tests.simulation.worlds import roofline_profile


@dataclass
class Seen:
    """When each request of a replica was prefilled, began and finished, and its tokens."""

    prefilled_s: dict[str, float] = field(default_factory=dict)
    first_s: dict[str, float] = field(default_factory=dict)
    finished_s: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)

    def take(self, boundaries) -> None:
        for boundary in boundaries:
            for name in boundary.emitted:
                self.first_s.setdefault(name, boundary.at_s)
                self.tokens[name] = self.tokens.get(name, 0) + 1
            self.prefilled_s |= dict.fromkeys(boundary.prefilled, boundary.at_s)
            self.finished_s |= dict.fromkeys(boundary.finished, boundary.at_s)


def drive(engine, jobs, late_s=0.0, prompts=()) -> Seen:
    """Feed (number, at_s, input, output) in order of time; look at the clock `late_s` after each boundary."""
    seen = Seen()
    for number, at_s, isl, osl in sorted(jobs, key=lambda job: job[1]):
        while (due_s := engine.next_boundary_s()) is not None and due_s < at_s:
            seen.take(engine.advance(min(due_s + late_s, at_s)))
        prefilled, blocks = engine.role is Role.DECODE, prompts[number] if prompts else ()
        engine.submit(str(number), int(isl), int(osl), prefilled=prefilled, at_s=at_s, blocks=blocks)
    while (due_s := engine.next_boundary_s()) is not None:
        seen.take(engine.advance(due_s + late_s))
    return seen


def jobs_of(trace):
    columns = zip(trace.arrival_s, trace.input_tokens, trace.output_tokens, strict=True)
    return [(number, float(at_s), int(isl), int(osl)) for number, (at_s, isl, osl) in enumerate(columns)]


def steps_of(profile=None, role=Role.DECODE, **rules) -> LiveEngine:
    return LiveEngine(profile or roofline_profile(capacity=1_000), EngineRules(**rules), role)
