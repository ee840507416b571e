"""What every settings model shares: unknown keys are errors, values are frozen, numbers are finite."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

RoleName = Literal["prefill", "decode", "mixed"]
"""The names of roles as configuration writes them; `headway.planning.types.Role` has the same values."""

MILLISECONDS = 1e-3


class Settings(BaseModel):
    """Base of all settings models."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True, use_attribute_docstrings=True
    )
