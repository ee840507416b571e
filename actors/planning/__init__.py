"""The live planner's loop without Ray: one tick, the steady grid, the decision log, settings, progress.

`loop` runs ticks (`tick`) on a grid (`grid`) and follows what becomes of them (`progress`); `observing` makes
what a policy reads, `records` what people read, `log` keeps it, `settings` changes it while it runs, `memory`
is what one tick leaves to the next, `status` is the document that is shown. `parts` names what is asked of
the other actors; `actor_parts` asks them, and is the one module here that knows Ray.
"""
