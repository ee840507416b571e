"""Advice in words: the headline, the table, and how far the figures may be trusted.

For a planner that acts they are of acting, if there is a fleet to compare with; otherwise of the dry run.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from headway.planning.documents import (
    ActedDocument,
    ActedFigures,
    AdviceDocument,
    AdviceFigures,
    AdviceWindow,
    Spread,
)
from headway.words import duration, money, targets

FLEETS = {False: ("real", "planned"), True: ("before", "Headway")}
"""The two fleets of a dry run, and of a planner that acts."""
DAY_S = 86400.0
COVERED = 0.95
"""Share of a window below which the text names how much was measured."""

OFF = 0.01
"""Difference of simulation and measurement from which on there is a note."""


def shown_part(found: AdviceDocument) -> AdviceDocument | ActedDocument:
    """The part with the figures: of acting, or of the dry run."""
    return found.acted if found.acted is not None and acts(found) else found


def acts(found: AdviceFigures) -> bool:
    """True if there are figures of what acting saved."""
    return found.acting and found.acted is not None and found.acted.start is not None


def head(found: AdviceDocument) -> list[str]:
    """The columns."""
    theirs, ours = FLEETS[acts(found)]
    return [
        *("", "covered", f"GPU-hours: {theirs}", f"GPU-hours: {ours}", "saved"),
        *(f"within SLO: {theirs}", f"within SLO: {ours}"),
        *([] if found.price_per_gpu_hour is None else ["cost saved"]),
    ]


def rows(found: AdviceDocument) -> list[list[str]]:
    """The window asked for, and the usual ones that say something else."""
    shown = shown_part(found)
    assert shown.window is not None
    of = {f"last {span(shown.window)}": shown.window}
    usual = {"last hour": shown.hour, "last day": shown.day, "since the start": shown.start}
    for name, window in usual.items():
        if window is not None and window not in of.values():
            of[name] = window
    return [[name, *_cells(window, found)] for name, window in of.items()]


def _cells(window: AdviceWindow, found: AdviceDocument) -> Iterator[str]:
    yield duration(window.covered_s)
    yield hours(window.stood.gpu_hours)
    yield hours(window.planned.gpu_hours)
    yield spread(window.saved_share, share)
    yield spread(window.stood.attainment, share)
    yield spread(window.planned.attainment, share)
    if window.saved_cost is not None and found.price_per_gpu_hour is not None:
        yield spread(window.saved_cost, lambda value: money(value, found.currency))


def headline(found: AdviceDocument) -> str:
    """The headline."""
    window = shown_part(found).window
    assert window is not None
    return f"Headway {verdict(window, found)}"


def verdict(window: AdviceWindow, found: AdviceFigures, *, forecast: bool = False) -> str:
    """`would have saved 30.0 % of the GPU-hours in 24 h, with …`; `forecast`: of the dry run in any case."""
    saved, acted = window.saved_share.value, acts(found) and not forecast
    if saved is None:
        what = "was compared with a fleet without GPUs" if acted else "watched a fleet without GPUs"
        return f"{what} for {_covered(window)}"
    saves, takes = ("saved", "took") if acted else ("would have saved", "would have taken")
    what = f"{saves} {share(saved)} of the" if saved >= 0.0 else f"{takes} {share(-saved)} more"
    cost = window.saved_cost.value if window.saved_cost else None
    paid = "" if cost is None else f" ({money(abs(cost), found.currency)})"
    early = "" if window.saved_share.low is not None else " (too short to judge by)"
    return f"{what} GPU-hours{paid} in {_covered(window)}{early}, {_kept(window)}"


def _covered(window: AdviceWindow) -> str:
    """The span, and how much of it is known where that is not about all."""
    if window.covered_s >= COVERED * (window.end_at - window.start_at):
        return span(window)
    return f"{duration(window.covered_s)} measured of {span(window)}"


def _kept(window: AdviceWindow) -> str:
    ours, theirs = window.planned.attainment.value, window.stood.attainment.value
    if ours is None and theirs is None:
        return "without a finished request" if window.requests else "without a request"
    return f"with {share(ours)} of requests within their SLO instead of {share(theirs)}"


def sentences(found: AdviceDocument) -> Mapping[str, str]:
    """What the figures are about, as named sentences."""
    shown, slo = shown_part(found), found.slo
    window = shown.window
    assert window is not None
    wanted = "" if slo.attainment is None else f", target {share(slo.attainment)}"
    lines = {
        "Model": found.model,
        "Time": f"{moment(window.start_at)} to {moment(window.end_at)}, {window.requests:,.0f} requests",
        "SLO": f"{targets((slo.ttft_ms or 0.0) / 1e3, (slo.itl_ms or 0.0) / 1e3)}{wanted}",
    }
    if found.pools:
        now = (f"{role} {pool.desired}" for role, pool in found.pools.items())
        lines["Plan now"] = f"{', '.join(now)} (policy {found.policy})"
    if isinstance(shown, ActedDocument):
        lines["Before"] = f"{fleet_text(shown)}, constant"
        if found.start is not None:
            lines["Dry run"] = f"Headway {verdict(found.start, found, forecast=True)}"
    elif found.acting:
        lines["Since then"] = (
            "the planner acts, nothing is added (planner.advice.against names a fleet to compare with)"
        )
    return lines


def fleet_text(acted: ActedFigures) -> str:
    """`prefill 8, decode 8`."""
    return ", ".join(f"{role} {count}" for role, count in acted.against.items())


def notes(found: AdviceDocument) -> Iterator[str]:
    """How far the figures may be trusted."""
    window, acted = shown_part(found).window, acts(found)
    assert window is not None
    if window.saved_share.low is None:
        yield "too short for an interval: it takes 40 minutes"
    else:
        yield "in brackets: 90 % bootstrap interval (blocks of ten minutes), for traffic like this window's"
    if acted:
        yield "Headway's GPU-hours are measured; the other fleet is simulated"
    elif not found.start_up_known:
        longest = max(found.start_up_s.values(), default=60.0)
        yield (
            f"no replica start was observed; {longest:.0f} s are assumed, and the interval covers half to "
            "twice that (set planner.advice.start_up_s)"
        )
    if window.planned.attainment.value is None:
        yield "no request finished, so there is no attainment"
    elif not window.measured:
        yield "the metrics do not tell which requests met their SLO: both attainments are simulated"
    elif window.replay_error is None:
        yield "no stretch without queues yet, so the simulation has not been checked against measurements"
    elif abs(window.replay_error) >= OFF:
        side = "fewer" if window.replay_error < 0.0 else "more"
        yield (
            f"{share(abs(window.replay_error))} {side} of the requests met their SLO than the simulation "
            "explains; the plan's figure is corrected by that"
        )
    span_s = window.end_at - window.start_at
    if window.covered_s < COVERED * span_s:
        yield f"{duration(span_s - window.covered_s)} of {span(window)} were not measured and are left out"
    if found.price_per_gpu_hour is None:
        yield "no cost: planner.advice.price_per_gpu_hour is not set"


def spread(figure: Spread, text: Callable[[float | None], str]) -> str:
    """`31 % (27 to 35 %)`, or the figure alone, also where the range is no wider than it."""
    value, low, high = text(figure.value), text(figure.low), text(figure.high)
    if figure.low is None or figure.high is None or low == value == high:
        return value
    return f"{value} ({low.removesuffix(' %')} to {high})"


def share(value: float | None) -> str:
    """A share in percent, to three digits and no finer than a hundredth."""
    if value is None:
        return "n/a"
    digits = 2 if abs(value) >= 0.9 and abs(value) < 1.0 else 1
    return f"{value * 100:.{digits}f} %"


def hours(value: float | None) -> str:
    """GPU-hours."""
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


def span(window: AdviceWindow) -> str:
    """How long it lasts; from two days on in days."""
    seconds = window.end_at - window.start_at
    return f"{seconds / DAY_S:.3g} days" if seconds >= 2.0 * DAY_S else duration(seconds)


def moment(unix_s: float) -> str:
    """Local date and time."""
    return f"{datetime.fromtimestamp(unix_s).astimezone():%Y-%m-%d %H:%M:%S}"
