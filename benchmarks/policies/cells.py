"""The grid: trace × profile × SLO × start-up delay × GPU budget.

The SLOs are round figures near fixed multiples of what an idle engine gives: tight is about twice its mean
ITL and a TTFT that nearly all prompts can meet, loose twice the tight ITL and three to four times its TTFT.
The report shows how many requests are attainable at all.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from types import MappingProxyType

HOUR_TURNS = 3
DELAYS_S = (0, 60, 180)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A trace file and how it is read.

    `turns` is the number of rotations that are pooled: an hour is closed to a ring and begun at as many
    places, since one burst decides an hour-long trace. `slos` names the row of `SLOS`; with `bursts` the
    five seconds of that file come on top, again and again.
    """

    file: str
    rate_scale: float = 1.0
    duration_s: float | None = None
    turns: int = HOUR_TURNS
    slos: str = "chat"
    bursts: str | None = None


TRACES: Mapping[str, Source] = MappingProxyType(
    {
        "azure1": Source(file="azure2023_conv.csv.gz"),
        "azure10": Source(file="azure2023_conv.csv.gz", rate_scale=10.0),
        "mooncake4": Source(file="mooncake_conversation.csv.gz", rate_scale=4.0, slos="long"),
        "burst": Source(file="azure2023_conv.csv.gz", rate_scale=10.0, bursts="aibrix_5s.csv.gz"),
        "r1": Source(file="servegen_r1_1d_full.csv.gz", turns=1),
        "mlarge20": Source(
            file="servegen_mlarge_wk1_thin50.csv.gz", rate_scale=20.0, duration_s=172_800.0, turns=1
        ),
    }
)
PROFILES: Mapping[str, str] = MappingProxyType(
    {"8b": "vidur_llama-3-8b_a100_tp1", "70b": "vidur_llama-2-70b_a100_tp4"}
)
SLOS: Mapping[tuple[str, str], Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        ("chat", "8b"): {"tight": (0.5, 0.020), "loose": (2.0, 0.040)},
        ("chat", "70b"): {"tight": (1.5, 0.045), "loose": (5.0, 0.080)},
        ("long", "8b"): {"tight": (5.0, 0.020), "loose": (15.0, 0.040)},
        ("long", "70b"): {"tight": (8.0, 0.050), "loose": (20.0, 0.080)},
    }
)
"""TTFT and ITL in seconds, by kind of trace and profile."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Base:
    """The part that cells with the same requests and SLOs share."""

    trace: str
    profile: str
    slo: str

    @property
    def name(self) -> str:
        return f"{self.trace}_{self.profile}_{self.slo}"

    @property
    def slo_s(self) -> tuple[float, float]:
        """TTFT and ITL."""
        return SLOS[TRACES[self.trace].slos, self.profile][self.slo]

    @property
    def days(self) -> bool:
        """True if the trace covers a day or more."""
        return TRACES[self.trace].turns == 1


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cell:
    """One deployment on one trace; `budgeted` cells have a `max_gpu_budget`."""

    base: Base
    delay_s: int
    budgeted: bool = False

    @property
    def name(self) -> str:
        return f"{self.base.name}_{self.delay_s}s_{'budget' if self.budgeted else 'free'}"


def bases(traces: Iterable[str] = TRACES) -> Iterator[Base]:
    """Every profile and SLO on these traces."""
    for trace, profile, slo in product(traces, PROFILES, ("tight", "loose")):
        yield Base(trace=trace, profile=profile, slo=slo)


def cells(patterns: str = "*", *, quick: bool = False) -> list[Cell]:
    """The cells whose name matches one of the patterns (by commas); quick: hours only, no budget."""
    every = [
        Cell(base=base, delay_s=delay_s, budgeted=budgeted)
        for base, delay_s, budgeted in product(bases(), DELAYS_S, (False, True))
        if not (quick and (base.days or budgeted))
    ]
    wanted = [pattern.strip() for pattern in patterns.split(",")]
    return [cell for cell in every if any(fnmatchcase(cell.name, pattern) for pattern in wanted)]
