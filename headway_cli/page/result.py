"""The page of one simulation: figures, charts over time, and every decision with its reasons."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from string import Template
from typing import Any

from headway_cli.page.charts import draw
from headway_cli.page.reasons import MOST_DECISIONS, DecisionText, decisions
from headway_cli.page.series import MOST_POINTS, interval_columns
from headway_cli.page.template import charts, notes, page
from headway_cli.words import (
    LATENCIES,
    QUANTILES,
    duration,
    fleet,
    headline,
    milliseconds,
    percent,
    plural,
    ratio,
)

Document = Mapping[str, Any]

# On a narrow screen legends take several lines: titles move above them.
SCRIPT = """
(function () {
  const charts = document.getElementById("charts"), tall = charts.layout.height;
  const place = () => {
    const narrow = window.innerWidth < 700, shift = narrow ? 52 : 20;
    if (charts.layout.annotations[0].yshift === shift) return;
    const change = { "margin.t": narrow ? 90 : 52, height: Math.round(tall * (narrow ? 1.3 : 1)) };
    charts.parentElement.style.height = change.height + "px";
    charts.layout.annotations.forEach((_, i) => { change["annotations[" + i + "].yshift"] = shift; });
    Plotly.relayout(charts, change);
  };
  window.addEventListener("resize", place);
  place();
})();
"""

BODY = Template("""<section class="cards">
$cards
</section>
<section class="pair">
<div class="wide"><h2>Latencies</h2>$latencies</div>
$notes
</section>
<h2>Over time</h2>
<p class="hint">Point at a decision (diamond: the target changed) for its reasons. Drag to zoom all panels,
double-click to return.</p>
$charts
<script>$script</script>
$decisions""")


def render(document: Document) -> str:
    """The page of one result; the same document (`wall_s` apart) gives the same text."""
    initial = {role: series["desired"][0] for role, series in document["replicas"].items()}
    worded = decisions(document["intervals"], initial)
    body = BODY.substitute(
        cards="\n".join(_cards(document)),
        latencies=_latencies(document),
        notes=notes([*_merged(document), *document["notes"]]),
        charts=charts(draw(document, worded)),
        script=SCRIPT,
        decisions=_decisions(worded, document),
    )
    return page(title=headline(document), subtitle=_subtitle(document), body=body)


def _subtitle(document: Document) -> str:
    slo, trace = document["slo"], document["trace"]
    return (
        f"{document['requests']:,} requests in {duration(document['simulated_s'])}, "
        f"mean {trace['isl_mean_tokens']:,.0f} input and {trace['osl_mean_tokens']:,.0f} output tokens. "
        f"Targets: TTFT {slo['ttft_s'] * 1e3:g} ms, ITL {slo['itl_s'] * 1e3:g} ms. "
        f"Fleet: {fleet(document)}; {plural(document['scale_events'], 'scale event')}, "
        f"{plural(document['direction_reversals'], 'reversal')}. "
        f"Routing {document['routing']}, {_predictor(document)}seed {document['seed']}."
    )


def _predictor(document: Document) -> str:
    return f"predictor {document['predictor']}, " if document["predictor"] else ""


def _cards(document: Document) -> Iterator[str]:
    slo, attainment = document["slo"], document["attainment"]
    is_met = attainment is not None and attainment >= slo["attainment"]
    verdict = f"aim {percent(slo['attainment'])}: {'met' if is_met else 'missed'}"
    bound = document["fluid_bound_ratio"]
    yield _card("Attainment", percent(attainment), verdict, "good" if is_met else "bad")
    yield _card("Goodput", f"{document['goodput_rps']:.4g}", "requests/s within all targets")
    yield _card("GPU-hours", f"{document['gpu_hours']:.4g}", f"bound {document['fluid_bound_gpu_hours']:.4g}")
    yield _card("Fluid bound", ratio(bound), "GPU-hours over the least possible")
    for key, name in (("ttft_s", "TTFT"), ("itl_s", "ITL")):
        late = document[key]["p99"]
        verdict = "good" if late is not None and late <= slo[key] else "bad"
        yield _card(f"{name} p99", f"{milliseconds(late)} ms", f"target {slo[key] * 1e3:g} ms", verdict)


def _card(name: str, value: str, remark: str, verdict: str = "") -> str:
    return (
        f'<div class="card {verdict}"><div class="name">{escape(name)}</div>'
        f'<div class="value">{escape(value)}</div><div class="remark">{escape(remark)}</div></div>'
    )


def _latencies(document: Document) -> str:
    head = "".join(f"<th>{quantile}</th>" for quantile in QUANTILES)
    rows = "".join(
        f"<tr><th>{name}</th>{''.join(f'<td>{milliseconds(document[key][q])}</td>' for q in QUANTILES)}</tr>"
        for key, name in LATENCIES
    )
    return f"<table><thead><tr><th>ms</th>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _merged(document: Document) -> Iterator[str]:
    merged = interval_columns(document["intervals"]).merged
    if merged > 1:
        yield (
            f"charts: more than {MOST_POINTS} intervals; each point stands for {merged} of them, "
            "latencies show the worst"
        )


def _decisions(worded: Sequence[DecisionText], document: Document) -> str:
    roles = tuple(document["replicas"])
    head = "".join(f"<th>{escape(role)}</th>" for role in roles)
    rows = "".join(_decision(decision, roles) for decision in worded)
    total = sum(1 for row in document["intervals"] if row["targets"])
    shown = "" if len(worded) == total else f" (the first {MOST_DECISIONS} that changed the fleet)"
    table = f"<table><thead><tr><th>time</th>{head}<th>why</th></tr></thead><tbody>{rows}</tbody></table>"
    summary = f"<summary>{plural(total, 'decision')}{shown}</summary>"
    return f'<details>{summary}<div class="wide">{table}</div></details>'


def _decision(decision: DecisionText, roles: Sequence[str]) -> str:
    counts = "".join(_count(decision, role) for role in roles)
    why = "<br>".join(escape(line) for line in decision.lines)
    return f'<tr><td>{_clock(decision.at_s)}</td>{counts}<td class="why">{why}</td></tr>'


def _clock(seconds: float) -> str:
    """`1:23:45`, hours, minutes and seconds after the start."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _count(decision: DecisionText, role: str) -> str:
    marked = ' class="moved"' if role in decision.changed else ""
    return f"<td{marked}>{decision.targets[role]}</td>"
