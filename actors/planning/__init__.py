"""The live planner without Ray: one tick, the steady grid of ticks, the decision log, settings, status.

`loop` runs a `tick` whenever one is due and lets `progress` follow the targets until replicas run. Both act
on the collaborators in `context`, of which only `control_actors` uses Ray. `log` keeps decisions, `settings`
changes what the planner goes by while it runs, and `status` is the document that is shown.
"""
