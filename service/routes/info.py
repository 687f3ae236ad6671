"""``GET /info``: what this server is and takes."""

import logging
from importlib import metadata

from fastapi import APIRouter

from model.runtime.batch_budget import DEFAULT_BATCH_TOKENS
from model.runtime.bundle import Manifest
from service.dependencies import ServicesDep, SettingsDep, TeamDep
from service.errors import ServiceError, UnavailableError
from service.faq.catalogue import FaqCatalogue
from service.lifespan import Services
from service.loaded_models import LoadedModel
from service.routes.both_methods import get_and_head
from service.schemas import BatchesBody, EngineBody, FaqBody, InfoResponse, ModelBody

logger = logging.getLogger(__name__)

router = APIRouter(tags=["server"])


@get_and_head(router, "/info", response_model=InfoResponse)
async def info(services: ServicesDep, settings: SettingsDep, team: TeamDep) -> InfoResponse:
    """Describe the models, the FAQ and the limits in force.

    What cannot be asked now (a FAQ store on another machine, say) is null, and `unavailable` says why.
    """
    unavailable = {route: absence.reason for route, absence in services.absences.items()}
    if "/predict" in unavailable:
        unavailable["/classify"] = unavailable["/predict"]
    faq = None
    if services.catalogue is not None:
        faq, reason = await _faq(services.catalogue, services)
        if reason is not None:
            unavailable["/search"] = reason
    model = services.embedder or services.classifier or services.reranker
    manifest = None if model is None else model.manifest
    by_name = {one.model.model_id: one for one in services.models}
    limits: dict[str, int | float] = settings.limits.model_dump() | settings.batching.model_dump()
    limits["max_batch_tokens"] = max(
        (one.batch_budget.tokens for one in services.models),
        default=settings.batching.batch_tokens() or DEFAULT_BATCH_TOKENS,
    )
    return InfoResponse(
        models=[loaded.model.model_id for loaded in services.models],
        model_id=None if manifest is None else manifest.name,
        model_type={} if manifest is None else _model_type(manifest),
        max_input_length=None if manifest is None else manifest.max_tokens,
        max_client_batch_size=settings.limits.max_inputs,
        auto_truncate=settings.truncate,
        version=metadata.version("conche"),
        embedding=None if services.embedder is None else _model(by_name[services.embedder.model_id]),
        ner=None if services.tagger is None else _model(by_name[services.tagger.model_id]),
        classifier=None if services.classifier is None else _model(by_name[services.classifier.model_id]),
        reranker=None if services.reranker is None else _model(by_name[services.reranker.model_id]),
        faq=faq,
        unavailable=unavailable,
        limits=limits,
        truncate=settings.truncate,
        threads=services.threads,
        streams=services.streams,
        workers=team.size,
        worker=team.number,
    )


async def _faq(catalogue: FaqCatalogue, services: Services) -> tuple[FaqBody, str | None]:
    """The FAQ, and why its store does not answer; None if it does."""
    body = FaqBody(entries=None, collections=None, source=services.faq_source, left_out=services.faq_left_out)
    try:
        infos = await catalogue.collections()
    except UnavailableError as error:
        return body, error.message
    except ServiceError:
        logger.exception("the FAQ's store cannot be read")  # it may name files, which are not the caller's
        return body, "the FAQ's store cannot be read; the service's log says why"
    counts = {"entries": sum(info.entries for info in infos), "collections": len(infos)}
    return body.model_copy(update=counts), None


def _model_type(manifest: Manifest) -> dict[str, dict[str, str | dict[str, str | int]]]:
    """As text-embeddings-inference has it, which serves one model only."""
    if manifest.task == "embedding":
        return {"embedding": {"pooling": str(manifest.pooling)}}
    labels: dict[str, str | dict[str, str | int]] = {
        "id2label": {str(index): label for index, label in enumerate(manifest.labels)},
        "label2id": {label: index for index, label in enumerate(manifest.labels)},
    }
    return {"reranker" if len(manifest.labels) == 1 else "classifier": labels}


def _model(loaded: LoadedModel) -> ModelBody:
    manifest, choice = loaded.model.manifest, loaded.choice
    return ModelBody(
        id=manifest.name,
        task=manifest.task,
        licence=manifest.licence,
        languages=list(manifest.languages),
        max_tokens=manifest.max_tokens,
        parameters=manifest.architecture.parameters,
        dimensions=manifest.dimensions,
        pooling=manifest.pooling,
        prompts=manifest.prompts,
        default_prompt_name=manifest.default_prompt_name,
        labels=list(manifest.labels),
        label_activation=manifest.label_activation,
        source=manifest.source.name,
        revision=manifest.source.revision,
        quality=manifest.quality,
        engine=EngineBody(
            name=loaded.engine.name,
            precision=loaded.engine.precision,
            choice=choice.how,
            milliseconds=dict(choice.milliseconds),
            refused=dict(choice.refused),
        ),
        batches=BatchesBody(
            max_tokens=loaded.batch_budget.tokens,
            choice=loaded.batch_budget.how,
            microseconds=dict(loaded.batch_budget.microseconds),
        ),
    )
