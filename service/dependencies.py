"""Typed FastAPI dependencies: hand routes the objects that the app and its lifespan hold.

All are coroutines, though none waits: FastAPI calls a plain function in a thread of a pool, eight times a
request to ``/embed``, and each way there and back costs more than all that these do.
"""

from typing import Annotated

from fastapi import Depends, Request

from service.admission import TextLimits
from service.faq.catalogue import FaqCatalogue
from service.lifespan import Services
from service.metrics import Metrics
from service.settings import Settings
from service.team import Team
from service.token_ids import InputReader


async def get_settings(request: Request) -> Settings:
    """What the app was created with."""
    settings: Settings = request.app.state.settings
    return settings


async def get_services(request: Request) -> Services:
    """What the lifespan opened."""
    services: Services = request.app.state.services
    return services


async def get_metrics(request: Request) -> Metrics:
    """The app's registry."""
    metrics: Metrics = request.app.state.metrics
    return metrics


async def get_team(request: Request) -> Team:
    """The workers that share the port."""
    team: Team = request.app.state.team
    return team


SettingsDep = Annotated[Settings, Depends(get_settings)]
ServicesDep = Annotated[Services, Depends(get_services)]
MetricsDep = Annotated[Metrics, Depends(get_metrics)]
TeamDep = Annotated[Team, Depends(get_team)]


async def get_limits(settings: SettingsDep) -> TextLimits:
    """What one request may bring."""
    limits = settings.limits
    return TextLimits(
        limits.max_inputs,
        limits.max_text_characters,
        limits.max_total_characters,
        read_empty=settings.empty_input == "read",
    )


LimitsDep = Annotated[TextLimits, Depends(get_limits)]


async def get_reader(services: ServicesDep, settings: SettingsDep, limits: LimitsDep) -> InputReader:
    """What makes admitted texts of a request's inputs."""
    return InputReader(limits, settings.input_ids, services.cl100k)


async def get_catalogue(services: ServicesDep) -> FaqCatalogue:
    """The FAQ.

    Raises:
        NoFaqError, FaqFailedError: there is none, with the reason.
    """
    if services.catalogue is None:
        raise services.absence("/search")
    return services.catalogue


ReaderDep = Annotated[InputReader, Depends(get_reader)]
CatalogueDep = Annotated[FaqCatalogue, Depends(get_catalogue)]
