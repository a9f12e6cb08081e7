"""Replay tau of answers that an engine gave: what the drafter would have been worth in their decode."""

from collections.abc import Sequence

import torch

from eagleray.drafters.replay import EmittedAnswer, replay
from eagleray.engines.base import DraftSetting, Generation, GenerationRequest
from eagleray.errors import DataError
from eagleray.speculation.acceptance import Cycle


def replay_generations(
    draft: DraftSetting, requests: Sequence[GenerationRequest], generations: Sequence[Generation]
) -> list[tuple[Cycle, ...]]:
    """Replay greedy answers with a drafter.

    Args:
        requests: What was asked, in the order of the answers.
        generations: Answers with captured features of exactly the layers that the drafter taps.

    Raises:
        DataError: An answer was not captured.
    """
    return replay(
        draft.source,
        [_emitted(generation, request) for request, generation in zip(requests, generations, strict=True)],
        draft.depth,
    )


def _emitted(generation: Generation, request: GenerationRequest) -> EmittedAnswer:
    captured = generation.captured
    if captured is None:
        raise DataError(
            f"Answer {generation.request_id!r} has no captured features to replay. Generate it with "
            "capture_layers set to the layers that the drafter taps."
        )
    return EmittedAnswer(
        ids_T=torch.tensor((*generation.prompt_ids, *generation.answer_ids), device=captured.final_TD.device),
        prompt_tokens=len(generation.prompt_ids),
        features_TLD=captured.features_TLD,
        final_TD=captured.final_TD,
        max_answer_tokens=request.max_new_tokens,
    )
