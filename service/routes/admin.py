"""``/admin``: which models serve, changed without a restart. Only there if a setting says so."""

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Path

from model.runtime.bundle import BundleError, discover
from service.absence import AdminOffError
from service.admin_schemas import LOAD_EXAMPLES, LoadedModelBody, LoadedModelsResponse, LoadRequest
from service.bundle_reading import resident_bytes
from service.dependencies import ServicesDep, SettingsDep, TeamDep
from service.errors import ConflictError, InvalidInputError, UnknownModelError
from service.http_errors import TEXT_ERRORS, documented
from service.json_body import StrictJsonRoute
from service.lifespan import Services
from service.loaded_models import LoadedModel, ModelLoadedError


class BundleRefusedError(InvalidInputError):
    """The bundle fails a check, or there is none of that name; the message names the check."""

    code = "bundle_refused"


async def _require_admin(settings: SettingsDep) -> None:
    if not settings.admin:
        raise AdminOffError("/admin is not served here; setting CONCHE_ADMIN")


router = APIRouter(route_class=StrictJsonRoute, tags=["operators"], dependencies=[Depends(_require_admin)])

ERRORS = documented(AdminOffError, *TEXT_ERRORS)


async def _require_one_process(team: TeamDep) -> None:
    """A change reaches the worker that takes the request: the others would go on as before, unseen."""
    if team.size > 1:
        raise ConflictError(
            f"{team.size} workers serve here, each with models of its own, and a change would reach one of "
            "them; set CONCHE_EMBEDDING_BUNDLE and the like and restart, or set CONCHE_WORKERS=1"
        )


@router.get("/admin/models", response_model=LoadedModelsResponse, responses=ERRORS)
async def list_loaded(services: ServicesDep, settings: SettingsDep) -> LoadedModelsResponse:
    """List the models that serve, with their memory and queues, and the bundles that could."""
    return LoadedModelsResponse(
        models=[_body(loaded, services) for loaded in services.models],
        bundles=sorted(path.name for path in discover(settings.models_path())),
        resident_bytes=resident_bytes(),
    )


@router.post(
    "/admin/models",
    response_model=LoadedModelBody,
    responses=documented(AdminOffError, ModelLoadedError, ConflictError, BundleRefusedError, *TEXT_ERRORS),
    dependencies=[Depends(_require_one_process)],
)
async def load_model(
    body: Annotated[LoadRequest, Body(openapi_examples=LOAD_EXAMPLES)],
    services: ServicesDep,
    settings: SettingsDep,
) -> LoadedModelBody:
    """Load a bundle of the models folder and prove it; requests go on meanwhile."""
    path = settings.models_path() / body.bundle
    try:
        model = await services.models.load(path)
    except BundleError as error:
        message = str(error).replace(f"{settings.models_path()}/", "")
        raise BundleRefusedError(
            f"bundle {body.bundle} is refused, check {message}", param="bundle"
        ) from error
    services.absences.pop(f"model {body.bundle}", None)
    loaded = next(one for one in services.models if one.model is model)
    return _body(loaded, services)


@router.delete(
    "/admin/models/{model_id}",
    response_model=LoadedModelsResponse,
    responses=documented(AdminOffError, UnknownModelError, ConflictError, *TEXT_ERRORS),
    dependencies=[Depends(_require_one_process)],
)
async def unload_model(
    model_id: Annotated[str, Path(examples=["tiny-spare"])], services: ServicesDep, settings: SettingsDep
) -> LoadedModelsResponse:
    """Serve no new requests with a model, finish what it has in work, and free its memory.

    The default models stay: they are what requests get that name none, and what the FAQ is searched with.
    """
    if model_id in services.defaults:
        raise ConflictError(
            "it serves requests that name no model; another default takes a restart with "
            "CONCHE_EMBEDDING_BUNDLE, CONCHE_NER_BUNDLE, CONCHE_CLASSIFIER_BUNDLE or CONCHE_RERANKER_BUNDLE",
            param="model",
        )
    await services.models.unload(model_id, within_s=settings.shutdown_grace_seconds)
    return await list_loaded(services, settings)


def _body(loaded: LoadedModel, services: Services) -> LoadedModelBody:
    model = loaded.model
    return LoadedModelBody(
        id=model.model_id,
        task=model.manifest.task,
        default=model.model_id in services.defaults,
        healthy=model.healthy,
        memory_bytes=loaded.memory_bytes,
        queued_texts=model.batcher.queued_items,
        queued_tokens=model.batcher.queued_tokens,
        loaded_at=loaded.loaded_at,
    )
