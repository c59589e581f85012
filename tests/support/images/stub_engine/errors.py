"""Error of a request, in the form of vLLM's responses."""

from typing import Any


class EngineError(Exception):
    """Rejection of a request."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param

    @classmethod
    def invalid(cls, message: str, param: str, value: object) -> "EngineError":
        """Return the error for a field with an invalid value."""
        return cls(400, "BadRequestError", f"{message} (parameter={param}, value={value})", param)

    def body(self) -> dict[str, Any]:
        """Return the body of the response."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}
