"""The prompts that servers are measured on, as the target reads them, and what they add to the regime."""

import random
from collections.abc import Sequence
from typing import Any

from eagleray.corpus.chat import ChatTemplate, RenderedPrompt, render_prompts
from eagleray.corpus.prompt import Prompt, user_prompt
from eagleray.corpus.prompt_files import read_prompts
from eagleray.errors import DataError
from eagleray.evaluation.endpoint.config import EndpointEvaluation, SyntheticConfig
from eagleray.evaluation.endpoint.load import plan_loads
from eagleray.evaluation.regime import describe_machine, workload_hash
from eagleray.evaluation.workloads import group_by_family
from eagleray.settings import fingerprint
from eagleray.targets.loading import load_tokenizer, resolve_target


def rendered_prompts(asked: EndpointEvaluation) -> list[RenderedPrompt]:
    """Read and render the first prompts of every family, or make up synthetic ones.

    Raises:
        DataError: There are none, or some cannot be read.
    """
    tokenizer = load_tokenizer(resolve_target(asked.target))
    if asked.synthetic is not None:
        special = set(tokenizer.all_special_ids)
        return synthetic_prompts(asked.synthetic, [i for i in range(len(tokenizer)) if i not in special])
    assert asked.prompts is not None
    rows = list(read_prompts(asked.prompts, "prompts", "unknown"))
    rejects = [row for row in rows if not isinstance(row, Prompt)]
    if rejects:
        raise DataError(
            f"{len(rejects)} of {len(rows)} rows of {asked.prompts} give no prompt; the first, "
            f"{rejects[0].origin}: {rejects[0].reason}. A measurement leaves nothing out: mend the file."
        )
    chat = ChatTemplate(tokenizer, asked.template_arguments)
    rendered, not_shown = render_prompts(chat, [row for row in rows if isinstance(row, Prompt)])
    if not_shown or not rendered:
        reason = f"{not_shown[0].origin}: {not_shown[0].reason}" if not_shown else "there are none"
        raise DataError(f"The prompts of {asked.prompts} cannot be shown to the target: {reason}.")
    families = group_by_family(rendered)
    limit = asked.endpoint.prompts_per_family
    return [item for items in families.values() for item in items[:limit]]


def synthetic_prompts(config: SyntheticConfig, token_ids: Sequence[int]) -> list[RenderedPrompt]:
    """Draw prompts of given lengths from ids that each stand for text."""
    draw = random.Random(config.seed)
    return [
        RenderedPrompt(
            prompt=user_prompt(
                f"{length} random tokens, number {number}",
                category=f"synthetic-{length}",
                source="random tokens: neither acceptance nor throughput is that of text",
                licence="none",
            ),
            prompt_ids=tuple(draw.choices(token_ids, k=length)),
        )
        for length in config.prompt_tokens
        for number in range(config.count)
    ]


def load_regime(asked: EndpointEvaluation, prompts: Sequence[RenderedPrompt]) -> dict[str, Any]:
    """What the client's side adds to the servers' regime."""
    config = asked.endpoint
    return {
        "client_machine": describe_machine().model_dump(mode="json"),
        "workload_hash": workload_hash(group_by_family(prompts)),
        "sampling": "greedy",
        "max_new_tokens": config.max_new_tokens,
        "concurrencies": list(config.concurrencies),
        "arrivals_per_s": list(config.arrivals_per_s),
        "replays": {load.name: fingerprint(load.gaps_s) for load in plan_loads(config) if load.gaps_s},
        "block_prompts": config.block_prompts,
    }
