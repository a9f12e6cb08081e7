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

    max_prefill_tokens: int = Field(default=4096, ge=64)
    """Prompt tokens of one forward while nothing is being decoded; bounds its memory. Longer prompts run in
    pieces."""

    prefill_tokens_per_cycle: int = Field(default=256, ge=64)
    """Prompt tokens that run between two cycles of decoding: what a long prompt may delay the answers that
    are under way. Pieces end at multiples of 64 tokens of a prompt."""

    kv_cache_gib: float | None = Field(default=None, gt=0)
    """Memory of the target's keys and values. Requests wait while the running ones may come to need it; one
    that could never fit is refused. None: as much as max_batch_size sequences grow to."""

    prefix_cache_gib: float = Field(default=0.25, ge=0)
    """Memory, beside kv_cache_gib, for what was computed of earlier prompts. A prompt that begins like one of
    them copies whole blocks of 64 tokens. 0 keeps nothing. Of each stream, so of each drafter that is
    served."""

    context_window_tokens: int | None = Field(default=None, ge=2)
    """Prompt and answer together never exceed this. None: the target's max_position_embeddings."""

    threads: int | None = Field(default=None, ge=1)
    """CPU threads of torch in this process. None leaves them as they are; one thread per process and several
    processes is the robust choice on a shared machine."""

    cuda_graphs: bool = True
    """On a GPU: record the target's decode steps once per shape and replay them, which spares the launches of
    their kernels. Padded rows take some of the cache's room."""

    @property
    def concurrency(self) -> int:
        """Requests that are answered at once."""
        return self.max_batch_size

    batch_invariant: bool = False
    """On a CPU without a C compiler: give a row the same bits alone and in a verification, so that drafted
    answers equal plain ones with certainty. False is faster there; answers can then differ where two logits
    tie to rounding. Compiled code does both, whatever this says."""
