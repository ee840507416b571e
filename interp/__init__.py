"""Profile tables → TTFT, ITL and throughput surfaces, and their inverse.

`load_profile(directory)` reads a profile; `profile.prefill` and `profile.decode` answer scalars and arrays
alike, say where they extrapolate, and never guess silently. Seconds and tokens throughout. Knows nothing of
the other packages.
"""

from interp.arrays import InterpError, ProfileError
from interp.decode_table import DecodeTable
from interp.profile import Coverage, Profile, build_profile, scaled
from interp.samples import DecodeSamples, PrefillSamples
from interp.storage import load_profile, save_profile
from interp.surfaces import BestPoint, DecodeSurface, PrefillSurface, PrefillTable

__all__ = [
    "BestPoint",
    "Coverage",
    "DecodeSamples",
    "DecodeSurface",
    "DecodeTable",
    "InterpError",
    "PrefillSamples",
    "PrefillSurface",
    "PrefillTable",
    "Profile",
    "ProfileError",
    "build_profile",
    "load_profile",
    "save_profile",
    "scaled",
]
