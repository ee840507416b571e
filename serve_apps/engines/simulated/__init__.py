"""The simulated engine: the simulator's model on the real clock, and answers in every form without a model.

engine    SimulatedEngine
timing    its clock, and the tokens that wait for a reader
content   its answers: words, the simplest text of a form that is asked for, embeddings, token ids
values    the simplest JSON that fits a schema, and text that fits a pattern
"""

from serve_apps.engines.simulated.engine import InjectedFault, SimulatedEngine, slowness_of

__all__ = ["InjectedFault", "SimulatedEngine", "slowness_of"]
