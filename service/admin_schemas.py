"""Bodies of the operators' routes."""

from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints

from model.runtime.bundle import BUNDLE_NAME
from service.lenient_body import LenientRequest


class LoadRequest(LenientRequest):
    """A bundle to load."""

    # File systems take no longer name, and say so by an error.
    bundle: Annotated[str, StringConstraints(pattern=f"^{BUNDLE_NAME.pattern}$", max_length=255)] = Field(
        description="Its name in the models folder."
    )


class LoadedModelBody(BaseModel):
    """A model that serves."""

    id: str
    task: str
    default: bool = Field(description="Whether it serves requests that name no model.")
    healthy: bool = Field(description="Whether it takes work.")
    memory_bytes: int = Field(
        description="By how much the process grew while it was loaded; what it needs at work comes on top."
    )
    queued_texts: int
    queued_tokens: int
    loaded_at: str = Field(description="ISO 8601, UTC.")


class LoadedModelsResponse(BaseModel):
    """The models that serve, and the bundles that could."""

    models: list[LoadedModelBody]
    bundles: list[str] = Field(description="Names in the models folder, loaded or not.")
    resident_bytes: int = Field(description="Memory of the whole process; 0 where the system does not tell.")


LOAD_EXAMPLES: dict[str, Any] = {"a bundle": {"value": {"bundle": "tiny-spare"}}}
