"""The live planner without Ray: one tick, the steady grid of ticks, the decision log, settings, status.

`loop` runs a `tick` whenever one is due, and `start` comes before the first. All act on the collaborators in
`context`, of which only `ControlActors` uses Ray. `log` keeps decisions and follows their targets until
replicas run, `settings` changes what the planner goes by while it runs, and `status` is the document that is
shown.
"""
