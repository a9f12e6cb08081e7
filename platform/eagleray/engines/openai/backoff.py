"""How long to wait before asking again."""

import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from eagleray.engines.openai.config import OpenAIEngineConfig


def retry_wait_s(config: OpenAIEngineConfig, retry: int, asked_s: float) -> float:
    """Seconds before a retry: twice as long each time, less a random part, so that clients that failed
    together do not come back together; as long as the server asked for, within the longest wait.

    Args:
        retry: 0 for the first one.
        asked_s: What the server asked for; 0 for nothing.
    """
    usual_s = config.first_retry_wait_s * 2**retry * random.uniform(0.5, 1.0)
    return min(config.longest_retry_wait_s, max(usual_s, asked_s))


def retry_after_s(header: str | None) -> float:
    """Seconds that a Retry-After header asks for, as a number or until a date; 0 for none."""
    if not header:
        return 0.0
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0
