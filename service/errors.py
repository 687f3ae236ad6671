"""What can go wrong, as types. Knows nothing of HTTP; imports the standard library only.

ServiceError
├── InvalidInputError       the caller must change the request
│   ├── EmptyInputError     nothing to work on
│   ├── InvalidTextError    not text: half a surrogate pair
│   ├── InputTooLongError   more tokens than the model reads
│   ├── TooManyInputsError  more items than one request may hold
│   └── InvalidFilterError  a filter on entries that cannot be read, or is too deep
├── NotFoundError           no such model, collection or entry
│   ├── UnknownModelError
│   ├── UnknownCollectionError
│   └── UnknownEntryError
├── ConflictError           the request does not fit what is stored
│   ├── CollectionExistsError
│   ├── DuplicateEntryError  an id is taken, and replacing was not asked for
│   ├── EntryChangedError    somebody else changed the entry meanwhile
│   └── ModelMismatchError   the collection was embedded by another model
├── UnauthorizedError       no key, or none that is known here
├── ForbiddenError          the key is known, and is not for this
├── PayloadTooLargeError    the body, in bytes
├── OverloadedError         try again after ``retry_after_s``
│   ├── RateLimitedError    the key has sent as many requests as it may, for now
│   └── TooManyConcurrentError  the key has as many requests in work as it may
├── UnavailableError        starting, stopping, or a worker has gone
├── StorageError            entries cannot be read or written: file damaged or not ours, disk failing
│   ├── StorageFullError     there is no room for what is to be written
│   └── ReadOnlyStoreError   entries can be read, and nothing can be written
└── InferenceError          the model failed; the cause is logged, never sent

``code`` is stable: clients, dashboards and metric labels may rely on it. ``message`` is for people and may
change.
"""

from typing import ClassVar


class ServiceError(Exception):
    """The root of the tree.

    Attributes:
        code: stable name of the kind of error, snake_case.
        message: for people; names the offending numbers, never quotes the caller's text.
        index: position of the offending item in the request, from 0; None if it is not about one item.
        param: the request field at fault; None if it is not about one field.
        retry_after_s: seconds after which a retry is worth trying; None if a retry cannot help.
    """

    code: ClassVar[str] = "internal"

    def __init__(
        self,
        message: str,
        *,
        index: int | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.index = index
        self.param = param
        self.retry_after_s = retry_after_s

    def call_item(self, name: str, *, index: int | None) -> None:
        """Call the offending item as its sender knows it, instead of ``param[index]``.

        Args:
            name: takes its place in the message.
            index: takes the place of the old one.
        """
        self.message = self.message.replace(f"{self.param}[{self.index}]", name)
        self.args = (self.message,)
        self.index = index


class InvalidInputError(ServiceError):
    """The request cannot be served as it stands; sending it again will not help."""

    code = "invalid_input"


class EmptyInputError(InvalidInputError):
    """There is nothing to work on: no items, or an item without any text."""

    code = "empty_input"


class InvalidTextError(InvalidInputError):
    """A string that has no UTF-8 form, such as one holding half of a surrogate pair."""

    code = "invalid_text"


class InputTooLongError(InvalidInputError):
    """One text has more tokens than the model reads, and cutting it was not asked for.

    Attributes:
        tokens: what the text came to, prompt and special tokens included.
        limit: what is read at most, prompt and special tokens included.
        setting: the setting or field that changes the outcome.
    """

    code = "input_too_long"

    def __init__(
        self,
        message: str,
        *,
        tokens: int,
        limit: int,
        setting: str,
        index: int | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message, index=index, param=param)
        self.tokens = tokens
        self.limit = limit
        self.setting = setting


class TooManyInputsError(InvalidInputError):
    """More items than one request may hold.

    Attributes:
        count: how many were sent.
        limit: how many are taken at most.
        setting: the setting that changes the limit.
    """

    code = "too_many_inputs"

    def __init__(
        self, message: str, *, count: int, limit: int, setting: str, param: str | None = None
    ) -> None:
        super().__init__(message, param=param)
        self.count = count
        self.limit = limit
        self.setting = setting


class InvalidFilterError(InvalidInputError):
    """A filter on entries that cannot be read, or that is deeper or longer than allowed."""

    code = "invalid_filter"


class NotFoundError(ServiceError):
    """The request names something that is not here."""

    code = "not_found"


class UnknownModelError(NotFoundError):
    """No model of that name serves this route; the message lists those that do."""

    code = "unknown_model"


class UnknownCollectionError(NotFoundError):
    """There is no FAQ collection of that name; the message lists those that are there."""

    code = "unknown_collection"


class UnknownEntryError(NotFoundError):
    """The collection has no entry of that id."""

    code = "unknown_entry"


class ConflictError(ServiceError):
    """The request is well formed and does not fit what is stored."""

    code = "conflict"


class CollectionExistsError(ConflictError):
    """A collection of that name is there already."""

    code = "collection_exists"


class DuplicateEntryError(ConflictError):
    """An entry of that id is there already, and replacing it was not asked for."""

    code = "duplicate_entry"


class EntryChangedError(ConflictError):
    """An entry was changed or deleted by somebody else since it was read; read it again."""

    code = "entry_changed"


class ModelMismatchError(ConflictError):
    """The collection was embedded by another model; the message names the command that re-embeds it."""

    code = "model_mismatch"


class UnauthorizedError(ServiceError):
    """The request brings no API key, or none that is known here."""

    code = "unauthorized"


class ForbiddenError(ServiceError):
    """The API key lacks the scope that this takes; the message names it."""

    code = "forbidden"


class PayloadTooLargeError(ServiceError):
    """The body is larger than the service reads.

    Attributes:
        limit: bytes taken at most; None if unknown where it is raised.
        setting: the setting that changes the limit.
    """

    code = "payload_too_large"

    def __init__(self, message: str, *, limit: int | None = None, setting: str | None = None) -> None:
        super().__init__(message)
        self.limit = limit
        self.setting = setting


class OverloadedError(ServiceError):
    """The queue is full; nothing of the request was started, so a retry is safe."""

    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class RateLimitedError(OverloadedError):
    """The API key has sent as many requests a minute as it may; nothing was started."""

    code = "rate_limited"


class TooManyConcurrentError(OverloadedError):
    """The API key has as many requests in work as it may have at once; nothing was started."""

    code = "too_many_concurrent"


class UnavailableError(ServiceError):
    """The service is starting or stopping, or a part of it has stopped working."""

    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: float = 5.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class StorageError(ServiceError):
    """Entries cannot be read or written: the disk fails, or the file is damaged or not ours."""

    code = "storage_failed"


class StorageFullError(StorageError):
    """There is no room on the disk for what is to be written; what is there stays, and can be read."""

    code = "storage_full"


class ReadOnlyStoreError(StorageError):
    """The FAQ is served from a read-only place: it can be searched, and nothing can be written."""

    code = "storage_read_only"


class InferenceError(ServiceError):
    """The model failed on this input. The cause is chained for the log and never sent."""

    code = "inference_failed"
