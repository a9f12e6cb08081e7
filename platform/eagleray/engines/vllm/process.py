"""A vLLM server as a process of ours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagleray.engines.counters import SpeculationCounters
from eagleray.engines.process import ServerProcess, free_port
from eagleray.engines.served import MODEL_NAME, Completion, Drafting, StepCounts
from eagleray.engines.vllm.capture import HiddenStates
from eagleray.engines.vllm.command import server_command, server_environment
from eagleray.engines.vllm.config import VllmConfig
from eagleray.errors import EngineError
from eagleray.speculation.acceptance import cut_cycles


class VllmServer(ServerProcess):
    """A running server.

    Args:
        target: Hugging Face folder of the target.
        drafter: See `server_command`.
        log: File that takes everything the server prints.

    Raises:
        EngineError: The environment holds no vLLM, or the server does not come up.
    """

    def __init__(self, config: VllmConfig, target: Path, drafter: Drafting | HiddenStates | None, log: Path):
        self.config = config
        port = free_port()
        command = server_command(config, target, drafter, port)
        if not Path(command[0]).exists():
            raise EngineError(
                f"There is no vLLM at {command[0]}. Make its environment with `make engine-vllm`, or name "
                "another one in engine.environment."
            )
        super().__init__(
            "vLLM",
            command,
            server_environment(config),
            port=port,
            ready="/health",
            log=log,
            start_timeout_s=config.start_timeout_s,
            request_timeout_s=config.request_timeout_s,
        )

    @property
    def max_concurrency(self) -> int:
        """Requests that it answers together."""
        return self.config.max_concurrency

    def counters(self) -> SpeculationCounters:
        """What was drafted and accepted so far, in all requests.

        Raises:
            EngineError: The server does not speculate, or is gone.
        """
        return SpeculationCounters.read(self.get("/metrics"))

    def complete(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Completion:
        """Answer one prompt greedily; several threads may ask at once.

        Raises:
            EngineError: The server refused the request, answered something else, or died.
        """
        body = {
            "model": MODEL_NAME,
            "prompt": list(prompt_ids),
            "max_tokens": max_new_tokens,
            "temperature": 0.0,
            "skip_special_tokens": False,
            "return_token_ids": True,
        }
        content = self.post("/v1/completions", body)
        try:
            (choice,) = content["choices"]
            ids = tuple(choice["token_ids"])
            counts = step_counts(content)
            cycles = cut_cycles(*counts, answer_tokens=len(ids)) if counts else ()
            return Completion(answer_ids=ids, finish_reason=choice["finish_reason"], cycles=cycles)
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(
                f"vLLM answered in an unknown form ({type(error).__name__}: {error}): {str(content)[:500]}. "
                f"Run `python -m jobs.doctor --vllm {self.config.environment}`."
            ) from None


def step_counts(content: Mapping[str, Any]) -> StepCounts | None:
    """What an answer tells of its verifications; None where it tells nothing.

    Of an answer in which nothing was drafted, vLLM gives null in place of its steps, and in a stream leaves
    them out.

    Raises:
        KeyError: They have other names.
    """
    counts = (content.get("metrics") or {}).get("speculative_decoding")
    if not counts:
        return None
    if counts.get("num_spec_steps") == 0:
        return (), ()
    return counts["per_step_drafted"] or (), counts["per_step_accepted"] or ()
