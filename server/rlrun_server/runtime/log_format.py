"""Log format of the server: one line per message, even for text that clients and tenants choose."""

import logging
import re

from rlrun.service.run_service import LOG_FORMAT
from typing_extensions import override

CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


class LineFormatter(logging.Formatter):
    """Writes control characters of a message as escapes, so that no request can forge a log line."""

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = CONTROLS.sub(lambda found: ascii(found[0])[1:-1], record.message)
        return super().formatMessage(record)


def format_lines() -> None:
    """Make all log handlers of the process use LineFormatter."""
    for handler in logging.root.handlers:
        handler.setFormatter(LineFormatter(LOG_FORMAT))
