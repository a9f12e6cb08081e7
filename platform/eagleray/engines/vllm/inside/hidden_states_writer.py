"""Runs inside vLLM: its own writer of hidden states, mended for processors.

vLLM's writer copies from a GPU into pinned memory and asks CUDA's events whether it is done, neither of
which a processor has: the server dies over its first answer. There, nothing is left to wait for once the
model has run, so the values are written at once. On a GPU everything is vLLM's.

This file is imported by the interpreter of vLLM's environment, which knows nothing of this package.
"""

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    PendingSave,
)


class _Done:
    """An event that has happened."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class HiddenStatesWriter(ExampleHiddenStatesConnector):
    """Writes `hidden_states` [tokens, layers, width] and `token_ids` [tokens] of every finished request."""

    def _submit_async_write(self, pending: PendingSave) -> None:
        cache = self._kv_cache  # [blocks, layers, block size, width]
        if cache is None or cache.device.type != "cpu":
            super()._submit_async_write(pending)
            return
        if not self._is_tp_rank_zero:
            return
        blocks = cache[torch.tensor(pending.block_ids, dtype=torch.long)]
        states = blocks.transpose(1, 2).flatten(0, 1)[: len(pending.token_ids)]
        tensors = {"hidden_states": states.contiguous(), "token_ids": pending.token_ids}
        done = _Done()
        self._write_tensors(tensors, done, pending.filename, self._lock_fds.pop(pending.req_id, None))
        # Without an event, vLLM would never count the request as written and never free its blocks.
        self._req_copy_events[pending.req_id] = done
