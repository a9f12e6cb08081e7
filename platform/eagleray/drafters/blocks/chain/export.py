"""What the folders of chain drafters that read the target's last hidden state say alike."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagleray.drafters.blocks.chain.config import ChainConfig
    from eagleray.drafters.blocks.chain.drafter import ChainDrafter


def final_state_profile(
    drafter: "ChainDrafter", config: "ChainConfig", engines: dict[str, str]
) -> dict[str, Any]:
    """What a reader must know and `config.json` does not say.

    Args:
        engines: What each engine has to be told, or why it cannot serve the drafter. With a reduced
            vocabulary none can: they know no map for such drafters.
    """
    reduced = "target id = draft id + d2t[draft id]; t2d marks the kept target ids; read by no engine"
    not_served = "not served: it would draft over the target's whole vocabulary"
    return {
        "algorithm": config.name,
        "settings": config.model_dump(mode="json"),
        "anchor_convention": "row p joins the final state of p with the token at p + 1 and drafts from p + 2",
        "slots": "recursive; any depth",
        "trained_slots": config.ttt_steps,
        "target_layer_ids": [],
        "layer_id_convention": "no layer is tapped; it reads the last hidden state after the final norm",
        "draft_vocabulary": reduced if drafter.has_vocabulary else "the target's",
        "engines": dict.fromkeys(engines, not_served) if drafter.has_vocabulary else engines,
    }
