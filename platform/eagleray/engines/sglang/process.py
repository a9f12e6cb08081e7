"""An SGLang server as a process of ours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagleray.engines.installed import Installed
from eagleray.engines.process import ServerProcess, free_port
from eagleray.engines.served import Completion, ServedDrafter, StepCounts
from eagleray.engines.sglang.command import server_command, server_environment
from eagleray.engines.sglang.config import SglangConfig
from eagleray.engines.sglang.versions import release_of
from eagleray.errors import EngineError
from eagleray.speculation.acceptance import cut_cycles


class SglangServer(ServerProcess):
    """A running server.

    Args:
        target: Hugging Face folder of the target.
        log: File that takes everything the server prints.

    Raises:
        EngineError: The environment holds no SGLang or one that cannot serve the drafter, or the server does
            not come up.
    """

    def __init__(self, config: SglangConfig, target: Path, drafter: ServedDrafter | None, log: Path):
        self.config = config
        self._depth = drafter.depth if drafter else 0
        version = Installed.find(config.environment, "sglang").version
        self._release = release_of(version)
        port = free_port()
        super().__init__(
            f"SGLang {version}",
            server_command(config, version, target, drafter, port),
            server_environment(),
            port=port,
            # Its health route generates a token and may take longer than a look should.
            ready="/model_info",
            log=log,
            start_timeout_s=config.start_timeout_s,
            request_timeout_s=config.request_timeout_s,
        )

    @property
    def max_concurrency(self) -> int:
        """Requests that it answers together."""
        return self.config.max_concurrency

    def complete(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Completion:
        """Answer one prompt greedily; several threads may ask at once.

        Raises:
            EngineError: The server refused the request, answered something else, or died.
        """
        sampling = {"temperature": 0.0, "max_new_tokens": max_new_tokens, "skip_special_tokens": False}
        content = self.post("/generate", {"input_ids": list(prompt_ids), "sampling_params": sampling})
        try:
            ids, told = tuple(content["output_ids"]), content["meta_info"]
            return Completion(
                answer_ids=ids,
                finish_reason=told["finish_reason"]["type"],
                cycles=cut_cycles(*self.step_counts(told), answer_tokens=len(ids)) if self._depth else (),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(
                f"SGLang answered in an unknown form ({type(error).__name__}: {error}): "
                f"{str(content)[:500]}. Run `python -m jobs.doctor --sglang {self.config.environment}`."
            ) from None

    def step_counts(self, told: Mapping[str, Any]) -> StepCounts:
        """Verifications from the histogram in an answer's `meta_info`, which knows no order: the last one,
        which a stop may have cut, is taken to be one that accepted the most.

        Raises:
            KeyError: It has another name.
        """
        counts = told[self._release.histogram]
        accepted = [slot for slot, times in enumerate(counts) for _ in range(times)]
        return [self._depth] * len(accepted), accepted
