"""What JSON bodies have in common: clients of others send fields we lack, and null for "not said"."""

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

_ANNOTATIONS: Final = ("title", "description", "default", "examples")


class LenientRequest(BaseModel):
    """A body whose unknown fields are ignored, and in which null means "not said"; documented as such."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_not_said(cls, body: object) -> object:
        if isinstance(body, dict):
            return {name: value for name, value in body.items() if value is not None}
        return body

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Add null to what each field takes that need not be there."""
        schema = handler(core_schema)
        body = handler.resolve_ref_schema(schema)
        for name, field in body.get("properties", {}).items():
            if name not in body.get("required", ()):
                body["properties"][name] = _or_null(field)
        return schema


def _or_null(field: dict[str, Any]) -> dict[str, Any]:
    """A field's schema that takes null as well; its title, description and default stay beside it."""
    beside = {name: value for name, value in field.items() if name in _ANNOTATIONS}
    takes = {name: value for name, value in field.items() if name not in beside}
    choices = takes["anyOf"] if set(takes) == {"anyOf"} else [takes] if takes else []
    if not choices or {"type": "null"} in choices:
        return field
    return {"anyOf": [*choices, {"type": "null"}], **beside}
