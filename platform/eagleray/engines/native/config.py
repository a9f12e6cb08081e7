"""Settings of the native engine."""

from typing import Literal

from pydantic import Field

from eagleray.settings import Settings


class NativeEngineConfig(Settings):
    """The engine section of a recipe, when the target runs in this process."""

    name: Literal["native"] = "native"
    """Selects this engine."""

    max_batch_size: int = Field(default=32, ge=1)
    """Rows that are decoded together. Waiting requests take over the slots of finished ones."""

    max_prefill_tokens: int = Field(default=4096, ge=1)
    """Prompt tokens run in one forward when several requests are admitted; bounds its memory.
    A longer prompt runs alone."""

    context_window_tokens: int | None = Field(default=None, ge=2)
    """Prompt and answer together never exceed this. None: the target's max_position_embeddings."""

    threads: int | None = Field(default=None, ge=1)
    """CPU threads of torch in this process. None leaves them as they are; one thread per process and several
    processes is the robust choice on a shared machine."""

    @property
    def concurrency(self) -> int:
        """Requests that are answered at once."""
        return self.max_batch_size

    batch_invariant: bool = False
    """On a CPU without a C compiler: give a row the same bits alone and in a verification, so that drafted
    answers equal plain ones with certainty. False is faster there; answers can then differ where two logits
    tie to rounding. Compiled code does both, whatever this says."""
