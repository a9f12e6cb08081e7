"""The native engine: continuous batching over our own target decoder, with or without a drafter.

Runs anywhere torch does and is the referee: in float32 its answers with a drafter equal its
answers without, greedy and sampled ones alike, since the seed of a request fixes the random number
of every place of its answer.
"""

from weakref import WeakKeyDictionary

import torch

from eagleray.corpus.answer_text import Decode
from eagleray.drafters.base import DraftSource
from eagleray.engines.base import DraftSetting, Engine
from eagleray.engines.native.batch import RunningBatch
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.graphs import graphs_for
from eagleray.engines.native.limits import Limits
from eagleray.engines.native.memory import CacheBudget
from eagleray.engines.native.prefixes import PrefixCache
from eagleray.engines.native.prompts import Prompts
from eagleray.engines.native.slots import Slots
from eagleray.engines.native.stopwatch import Stopwatch
from eagleray.engines.native.stream import NativeStream
from eagleray.speculation.config import TreeSetting
from eagleray.speculation.depth import DepthChooser
from eagleray.targets.decoder import TargetDecoder

DraftKey = tuple[int, TreeSetting | None]
"""Depth and tree: what else a cycle with a drafter costs."""


class NativeEngine(Engine):
    """Runs the target in this process.

    Args:
        stop_token_ids: Ids that end an answer. None: those of the target's folder.
        show: Text of ids; needed for stop strings.
    """

    def __init__(
        self,
        decoder: TargetDecoder,
        config: NativeEngineConfig,
        stop_token_ids: tuple[int, ...] | None = None,
        show: Decode | None = None,
    ):
        self.decoder = decoder
        self.config = config
        self._show = show
        self.limits = Limits.of(decoder.geometry, config)
        self._stop_ids = frozenset(
            decoder.geometry.stop_token_ids if stop_token_ids is None else stop_token_ids
        )
        self._choosers: WeakKeyDictionary[DraftSource, dict[DraftKey, DepthChooser]] = WeakKeyDictionary()
        if config.threads is not None:
            torch.set_num_threads(config.threads)

    def open_stream(
        self, *, draft: DraftSetting | None = None, capture_layers: tuple[int, ...] | None = None
    ) -> NativeStream:
        """Start an empty stream.

        Its caches start empty and grow with what is admitted: to as many rows as ran together, at most
        max_batch_size, of the longest sequence's length, at most doubled and never beyond kv_cache_gib.

        Raises:
            EngineError: The drafter cannot draft that deep, or layers are asked for that the target
                does not have.
        """
        if draft is not None:
            self.limits.check_draft(draft)
        self.limits.check_layers(capture_layers or ())
        stopwatch = Stopwatch()
        draft_room = 0 if draft is None else draft.tree.nodes if draft.tree else draft.depth
        slots = Slots(
            self.decoder,
            draft,
            capture_layers,
            self.config.max_batch_size,
            self.limits.context_window_tokens,
            CacheBudget.of(self.decoder.geometry, self.decoder.dtype, self.config, draft_room),
            stopwatch,
        )
        kept = PrefixCache(int(self.config.prefix_cache_gib * 2**30))
        return NativeStream(
            slots,
            Prompts(slots, self.decoder, kept, stopwatch),
            RunningBatch(
                slots,
                self.decoder,
                draft,
                stopwatch,
                self._chooser(draft),
                graphs_for(self.decoder, self.config),
            ),
            self.config,
            self.limits,
            self._stop_ids,
            stopwatch,
            self._show,
            lossy=draft is not None and draft.typical is not None,
        )

    def _chooser(self, draft: DraftSetting | None) -> DepthChooser | None:
        """One for all streams with the same draft setting: what it has measured holds for the next one."""
        if draft is None or not draft.adaptive:
            return None
        choosers = self._choosers.setdefault(draft.source, {})
        return choosers.setdefault((draft.depth, draft.tree), DepthChooser(draft.depth))
