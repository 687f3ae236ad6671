"""Errors of a route that has no model. Beside ``errors`` because only the lifespan knows of such routes."""

from service.errors import NotFoundError, UnavailableError


class NoModelError(NotFoundError):
    """No bundle is configured for this route."""

    code = "no_model"


class ModelFailedError(UnavailableError):
    """A bundle is configured for this route, but did not pass its checks."""

    code = "no_model"
