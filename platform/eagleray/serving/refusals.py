"""Why a request gets no answer, as the client is told: a status and one sentence, never a path or a trace."""

from typing import Any


class RefusalError(Exception):
    """A request that is not answered.

    Args:
        message: What was seen, what was expected, what to change.
        param: The field that is at fault.
    """

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The JSON that OpenAI's clients expect of an error."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Headers beside those of any JSON."""
        return {}


class NotAllowedError(RefusalError):
    """The bearer token is missing or wrong."""

    status = 401
    kind = "authentication_error"

    def headers(self) -> dict[str, str]:
        """Say how to authenticate."""
        return {"www-authenticate": "Bearer"}


class UnknownModelError(RefusalError):
    """Another model is asked for than is served."""

    status = 404
    kind = "not_found_error"


class TooLargeError(RefusalError):
    """The body is larger than allowed."""

    status = 413


class WrongMediaTypeError(RefusalError):
    """The body is not JSON by its own account."""

    status = 415


class BusyError(RefusalError):
    """As many requests wait as may."""

    status = 429
    kind = "rate_limit_error"

    def __init__(self, message: str, retry_after_s: int):
        super().__init__(message, code="queue_full")
        self.retry_after_s = retry_after_s

    def headers(self) -> dict[str, str]:
        """Say when to come back."""
        return {"retry-after": str(self.retry_after_s)}


class EngineFailedError(RefusalError):
    """The engine took the request and could not finish it."""

    status = 500
    kind = "server_error"


class NotReadyError(RefusalError):
    """The engine has stopped; a replica that restarts will answer."""

    status = 503
    kind = "server_error"


class TimedOutError(RefusalError):
    """The answer took longer than it may."""

    status = 504
    kind = "timeout_error"
