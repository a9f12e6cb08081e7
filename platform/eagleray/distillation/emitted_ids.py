"""Whether answers may be trained on although their ids are not certainly those that the target emitted."""

from eagleray.engines.config import DistilEngineConfig
from eagleray.engines.openai.config import OpenAIEngineConfig
from eagleray.errors import DataError


def require_emitted_ids(mismatched_prompts: int, planned_prompts: int, engine: DistilEngineConfig) -> None:
    """Stop as soon as more prompts are mismatched than a dataset of this size may hold.

    Raises:
        DataError: They are; says how many, and what helps.
    """
    if not isinstance(engine, OpenAIEngineConfig):
        return
    allowed_ratio = engine.max_retokenised_mismatch_ratio
    if mismatched_prompts > allowed_ratio * planned_prompts:
        raise DataError(
            f"The server at {engine.url} gives text instead of token ids, and for {mismatched_prompts} of "
            f"{planned_prompts} planned prompts the text has other ids, or none that the server confirms, so "
            "a drafter would learn what the target did not emit. Distil with vLLM or SGLang, which give ids, "
            f"or raise max_retokenised_mismatch_ratio of the engine (now {allowed_ratio:g}); what is "
            "published is kept."
        )
