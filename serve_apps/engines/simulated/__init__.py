"""The simulated engine: the simulator's model on the real clock, and answers in every form without a model.

engine      SimulatedEngine
output      its clock, the tokens that wait for a reader, and the words that they say
content     what it says where a client asks for a form: a tool's call, JSON of a schema, a choice, a pattern
values      the least JSON that fits a schema
patterns    a text that a regular expression matches
asides      embeddings, token ids and the version
"""

from serve_apps.engines.simulated.engine import InjectedFault, SimulatedEngine, slowness_of

__all__ = ["InjectedFault", "SimulatedEngine", "slowness_of"]
