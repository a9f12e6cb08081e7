"""Settings of the engine that answers from what was answered before."""

from typing import Literal

from pydantic import Field

from eagleray.settings import Settings


class ReplayEngineConfig(Settings):
    """The distil.engine section of a recipe, when answers are replayed instead of computed.

    Makes a dataset anew with other supervision settings or in other shards, without the target, and gives
    the data plane work of any size.
    """

    name: Literal["replay"]
    """Selects this engine."""

    source: str
    """Where answers come from: a dataset (folder or storage address) that learnt all turns and thoughts, or
    a `.jsonl` file with `prompt_ids`, `answer_ids` and, where an answer was cut, `finish_reason: length`."""

    unknown_prompts: Literal["fail", "cycle"] = "fail"
    """What a prompt gets that the source does not hold. `fail`: its prompt is rejected. `cycle`: one of the
    stored answers, always the same one; the samples are of the right shape, and not what the target says."""

    max_batch_size: int = Field(default=256, ge=1)
    """Requests that are answered at once."""

    @property
    def concurrency(self) -> int:
        """Requests that are answered at once."""
        return self.max_batch_size
