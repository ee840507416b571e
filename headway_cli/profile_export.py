"""`headway profile export`: the profile that a running deployment plans by → a profile directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway_cli.control import ControlClient
from headway_cli.errors import CliError
from headway_cli.profile_import import refuse_what_exists
from interp import DecodeSamples, PrefillSamples, ProfileError, save_profile

PATH = "/v1/control/profile"


def export_profile(server: ControlClient, output: Path, *, overwrite: bool) -> Mapping[str, Any] | None:
    """Write it; what `meta` says of its refinement, None where it is as measured. CliError has one line."""
    refuse_what_exists(output, overwrite=overwrite)
    document = server.get(PATH)
    try:
        prefill = PrefillSamples(**document["prefill"])
        decode = DecodeSamples(**document["decode"])
        meta = dict(document["meta"])
    except (KeyError, TypeError, ValueError, ProfileError) as error:
        raise CliError(f"{server.url}{PATH}: the answer is not a profile: {error}") from error
    save_profile(output, prefill, decode, meta)
    return meta.get("refined")
