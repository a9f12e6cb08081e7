"""A block of masked slots in, hidden states of its slots out, in one forward (DFlash, arXiv 2602.06036).

A block is the newest committed token (the anchor) and masks; slot k predicts the token k positions
after the anchor, at its own position. Target features of the positions before the anchor enter each
layer as additional keys and values. Shapes: N packed rows, L tapped layers, D target width, K slots.
"""

from typing import Any, cast

from torch import Tensor, nn

from eagleray.drafters.base import DraftSession
from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
from eagleray.drafters.blocks.headed import HeadedDrafter, initialise
from eagleray.drafters.blocks.layers import Dimensions, Rotary
from eagleray.drafters.blocks.masked_block.config import MaskedBlockConfig, Reach
from eagleray.drafters.blocks.masked_block.export import LM_HEAD, engine_config, profile
from eagleray.drafters.blocks.masked_block.layer import MaskedBlockLayer
from eagleray.drafters.blocks.masked_block.session import MaskedBlockSession
from eagleray.errors import ConfigError
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.heads import FrozenHeads


class MaskedBlockDrafter(HeadedDrafter):
    """The network and its export; subclasses choose the layer and add the training step."""

    architecture: str
    """Name under which engines know the network."""

    def __init__(self, config: MaskedBlockConfig, heads: FrozenHeads, vocabulary: DraftVocabulary | None):
        super().__init__(config, heads, vocabulary)
        geometry = heads.geometry
        self.config = config
        self.dimensions = Dimensions.resolve(config, geometry)
        self.mask_token_id = _mask_token(config, geometry)
        width, eps = geometry.hidden_size, geometry.rms_norm_eps
        self.fc = nn.Linear(len(self.tapped_layers) * width, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, eps=eps)
        self.layers = nn.ModuleList(self.new_layer() for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(width, eps=eps)
        self.rotary = Rotary(geometry, self.dimensions.head_dim)
        initialise(self, self.fc, self.norm)

    def new_layer(self) -> MaskedBlockLayer:
        """A layer of `dimensions`."""
        return MaskedBlockLayer(self.dimensions)

    def stack(self) -> list[MaskedBlockLayer]:
        """The layers, bottom first."""
        return [cast("MaskedBlockLayer", layer) for layer in self.layers]

    def reaches(self) -> list[Reach]:
        """What each layer lets a slot attend to."""
        return [self.config.reach(index) for index in range(self.config.num_layers)]

    def fuse(self, features_NLD: Tensor) -> Tensor:
        """Mix the tapped layers, in the order of their ids, into the state that layers inject [N, D]."""
        fused_ND: Tensor = self.hidden_norm(self.fc(self.widen(features_NLD.flatten(-2))))
        return fused_ND

    def block_ids(self, anchor_ids: Tensor, size: int) -> Tensor:
        """[..., size]: the anchor and `size - 1` masks."""
        ids = anchor_ids.new_full((*anchor_ids.shape, size), self.mask_token_id)
        ids[..., 0] = anchor_ids
        return ids

    def open_session(self, max_rows: int, max_length: int) -> DraftSession:
        """Allocate keys and values of `max_rows` sequences."""
        return MaskedBlockSession(self, max_rows, max_length)

    def export_config(self) -> dict[str, Any]:
        """Configuration that SGLang and vLLM read."""
        return engine_config(self)

    def borrowed_tensors(self) -> dict[str, Tensor]:
        """With a reduced vocabulary, the target's rows for it."""
        return {LM_HEAD: self.target_head_UD()} if self.has_vocabulary else {}

    def engine_needs(self) -> dict[str, str]:
        """What each engine has to be told, or why it cannot serve this drafter."""
        size = self.config.block_size
        return {
            "vllm": f"method dflash, num_speculative_tokens {size - 1}",
            "sglang": "not served: it reads no reduced vocabulary for DFlash"
            if self.has_vocabulary
            else f"algorithm DFLASH, {size} draft tokens, the anchor counted",
        }

    def export_profile(self) -> dict[str, Any]:
        """What a reader of the export must know and the configuration does not say."""
        return profile(self)


def _mask_token(config: MaskedBlockConfig, geometry: TargetGeometry) -> int:
    if config.mask_token_id is None:
        taken = {geometry.bos_token_id, geometry.pad_token_id, *geometry.stop_token_ids}
        return next(token for token in range(geometry.vocab_size) if token not in taken)
    if config.mask_token_id >= geometry.vocab_size:
        raise ConfigError(
            f"drafter.mask_token_id is {config.mask_token_id}; expected an id below {geometry.vocab_size}, "
            "the target vocabulary, whose embedding the mask borrows."
        )
    return config.mask_token_id
