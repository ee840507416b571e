"""Profiles of other systems → ours: AIBrix's JSON, and folders of pre-swept NPZ files.

A file is AIBrix's, a folder holds `prefill.npz` and `decode.npz`; both become tables of `interp`.
"""

from headway.profiling.foreign.aibrix import import_aibrix
from headway.profiling.foreign.pre_swept import import_pre_swept, is_pre_swept
from headway.profiling.foreign.values import ForeignProfile

__all__ = ["ForeignProfile", "import_aibrix", "import_pre_swept", "is_pre_swept"]
