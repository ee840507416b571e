"""What every settings model shares: unknown keys are errors, values are frozen, numbers are finite.

The number types here refuse booleans, which Python would take for 0 and 1. Upper bounds are far beyond any
deployment; they keep a slip of the keyboard from asking for more memory or time than there is.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from headway.extensions import ExtensionPoint

RoleName = Literal["prefill", "decode", "mixed"]
"""The names of roles as configuration writes them; `headway.planning.types.Role` has the same values."""

MILLISECONDS = 1e-3
MOST_REPLICAS = 1_000_000
MOST_TOKENS = 1_000_000_000


def _no_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"should be a number, not {str(value).lower()}")
    return value


PositiveInt = Annotated[int, BeforeValidator(_no_boolean), Field(gt=0)]
NonNegativeInt = Annotated[int, BeforeValidator(_no_boolean), Field(ge=0)]
PositiveFloat = Annotated[float, BeforeValidator(_no_boolean), Field(gt=0)]
NonNegativeFloat = Annotated[float, BeforeValidator(_no_boolean), Field(ge=0)]
ReplicaCount = Annotated[PositiveInt, Field(le=MOST_REPLICAS)]


@dataclass(frozen=True, slots=True)
class NameOf:
    """Annotates a name that is built in or brought by an installed package; others are refused."""

    point: ExtensionPoint

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Checked when settings are read: packages are looked up then, not at import."""
        return core_schema.no_info_after_validator_function(self._known, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """All names that this installation has."""
        return {**handler(schema), "enum": list(self.point.names())}

    def _known(self, name: str) -> str:
        if name in self.point:
            return name
        *names, last = map(repr, self.point.names())
        raise PydanticCustomError("literal_error", f"Input should be {', '.join(names)} or {last}")


class Settings(BaseModel):
    """Base of all settings models."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True, use_attribute_docstrings=True
    )
