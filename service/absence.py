"""Errors of a route that lacks what it needs; beside ``errors``: only the lifespan knows of such routes."""

from service.errors import NotFoundError, UnavailableError


class NoModelError(NotFoundError):
    """No bundle is configured for this route."""

    code = "no_model"


class ModelFailedError(UnavailableError):
    """A bundle is configured for this route, but did not pass its checks."""

    code = "no_model"


class NoFaqError(NotFoundError):
    """The service is configured without a FAQ."""

    code = "no_faq"


class FaqFailedError(UnavailableError):
    """The FAQ's store or file could not be used when the service started; its log says why."""

    code = "faq_unavailable"


class AdminOffError(NotFoundError):
    """The operators' routes are not served here."""

    code = "admin_off"
