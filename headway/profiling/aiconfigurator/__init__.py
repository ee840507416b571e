"""Latencies from AI Configurator: the only package that knows that library.

AI Configurator (Apache-2.0, NVIDIA) adds up the operators of a model's forward pass. Matrix products,
attention and collectives are looked up in databases measured on the very GPU and backend (database mode
SILICON), interpolated, and beyond the measured range extrapolated; element-wise operators follow a
memory-bandwidth formula. Engine overheads (scheduling, launches, sampling) are not included.

`sdk` imports the library, keeps it silent and translates its errors; `catalogue` knows its names;
`coverage` says how much of an answer was measured; `engine` answers.
"""

from headway.profiling.aiconfigurator.catalogue import QUANTIZATIONS, known_models, supported
from headway.profiling.aiconfigurator.engine import AiConfigurator

__all__ = ["QUANTIZATIONS", "AiConfigurator", "known_models", "supported"]
