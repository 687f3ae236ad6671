"""What a call may raise.

ConcheError
├── ConnectionFailedError    no answer came
│   └── TimedOutError        not within the client's ``timeout_s``
├── UnexpectedAnswerError    an answer came that is not Conche's
└── ApiError                 the server said no; ``code`` says why, docs/errors.md lists them
    ├── AuthenticationError  401
    ├── PermissionDeniedError  403
    ├── NotFoundError        404
    ├── ConflictError        409
    ├── TooLargeError        413
    ├── RateLimitedError     429
    ├── InvalidRequestError  every other 4xx
    ├── UnavailableError     503
    └── ServerFailedError    every other 5xx
"""

from typing import Final


class ConcheError(Exception):
    """The root of the tree."""


class ConnectionFailedError(ConcheError):
    """The server cannot be reached, or the connection broke before the whole answer had come."""


class TimedOutError(ConnectionFailedError):
    """The answer took longer than ``timeout_s``; the server may still be at work on it."""


class UnexpectedAnswerError(ConcheError):
    """An answer that Conche does not give: of a proxy, or of another server."""


class ApiError(ConcheError):
    """The server's answer is an error.

    Attributes:
        status: of HTTP.
        code: stable name of the kind of error; None if the answer was not the server's own, but a proxy's.
        message: for people.
        index: position of the item at fault, in the list as it was given to the call; None if it is not about
            one item.
        param: the field at fault, or None.
        request_id: for finding the request in the server's log, or None.
        retry_after: seconds after which the server would have it sent again, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str | None = None,
        index: int | None = None,
        param: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{message} (HTTP {status}{f', {code}' if code else ''})")
        self.message = message
        self.status = status
        self.code = code
        self.index = index
        self.param = param
        self.request_id = request_id
        self.retry_after = retry_after


class InvalidRequestError(ApiError):
    """The request cannot be served as it stands."""


class AuthenticationError(ApiError):
    """No API key was sent, or one that the server does not know."""


class PermissionDeniedError(ApiError):
    """The API key, or the server's data folder, does not allow it."""


class NotFoundError(ApiError):
    """There is no such model, collection or entry."""


class ConflictError(ApiError):
    """What is stored does not allow it."""


class TooLargeError(ApiError):
    """A text, or the whole request, is larger than the server takes."""


class RateLimitedError(ApiError):
    """The queue is full, or the API key's limit is reached; nothing was started."""


class UnavailableError(ApiError):
    """The server is starting or stopping, or a part of it has stopped working."""


class ServerFailedError(ApiError):
    """The model, the disk or the server failed."""


_KINDS: Final[dict[int, type[ApiError]]] = {
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    413: TooLargeError,
    429: RateLimitedError,
    503: UnavailableError,
}


def kind_of(status: int) -> type[ApiError]:
    """The class of an error answer."""
    return _KINDS.get(status, ServerFailedError if status >= 500 else InvalidRequestError)
