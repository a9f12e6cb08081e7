"""The prompts that servers are measured on, as the target reads them, and what they add to the regime."""

from collections.abc import Sequence
from typing import Any

from eagleray.corpus.chat import ChatTemplate, RenderedPrompt, render_prompts
from eagleray.corpus.prompt import Prompt
from eagleray.corpus.prompt_files import read_prompts
from eagleray.errors import DataError
from eagleray.evaluation.endpoint.config import EndpointEvaluation
from eagleray.evaluation.endpoint.load import plan_loads
from eagleray.evaluation.regime import describe_machine, workload_hash
from eagleray.evaluation.workloads import group_by_family
from eagleray.settings import fingerprint
from eagleray.targets.loading import load_tokenizer, resolve_target


def rendered_prompts(asked: EndpointEvaluation) -> list[RenderedPrompt]:
    """Read and render the first prompts of every family.

    Raises:
        DataError: There are none, or some cannot be read.
    """
    rows = list(read_prompts(asked.prompts, "prompts", "unknown"))
    rejects = [row for row in rows if not isinstance(row, Prompt)]
    if rejects:
        raise DataError(
            f"{len(rejects)} of {len(rows)} rows of {asked.prompts} give no prompt; the first, "
            f"{rejects[0].origin}: {rejects[0].reason}. A measurement leaves nothing out: mend the file."
        )
    chat = ChatTemplate(load_tokenizer(resolve_target(asked.target)), asked.template_arguments)
    rendered, not_shown = render_prompts(chat, [row for row in rows if isinstance(row, Prompt)])
    if not_shown or not rendered:
        reason = f"{not_shown[0].origin}: {not_shown[0].reason}" if not_shown else "there are none"
        raise DataError(f"The prompts of {asked.prompts} cannot be shown to the target: {reason}.")
    families = group_by_family(rendered)
    limit = asked.endpoint.prompts_per_family
    return [item for items in families.values() for item in items[:limit]]


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
