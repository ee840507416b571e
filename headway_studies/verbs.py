"""The studies' verbs as `headway` lists them: section, summary, `module:function`. Imports nothing heavy."""

from collections.abc import Mapping

PLAN, ENGINES = "Plan by simulation", "Engines"
COMMANDS = "headway_studies.commands"

VERBS: Mapping[str, tuple[str, str, str]] = {
    "recommend": (
        PLAN,
        "Choose engine, mode, chunk size, policy and fleet for a trace: the least cost, simulated.",
        f"{COMMANDS}.recommend:recommend",
    ),
    "queue-sim": (
        PLAN,
        "Compare push and pull, simple and SLO-aware queues: waits and SLO violations, over many seeds.",
        f"{COMMANDS}.queue_sim:queue_sim",
    ),
    "estimate": (
        ENGINES,
        "Estimate performance profiles with AI Configurator (optional extra `estimate`), no GPU needed.",
        f"{COMMANDS}.estimate:estimate",
    ),
}
