"""The simulated engine: the simulator's model on the real clock, and answers in every form without a model.

engine      SimulatedEngine
timing      its clock, and the tokens that wait for a reader
content     the text of its answers: words, or where a client asks for a form, the simplest text of that form
values      the simplest JSON that fits a schema, and text that fits a pattern
auxiliary   embeddings, token ids and the version
"""

from serve_apps.engines.simulated.engine import InjectedFault, SimulatedEngine, slowness_of

__all__ = ["InjectedFault", "SimulatedEngine", "slowness_of"]
