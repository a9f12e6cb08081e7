"""How a vLLM server is told to write the hidden states of its answers to files.

vLLM does so as if it were drafting: its method `extract_hidden_states` puts what enters the named layers into
a cache of its own, and a connector writes the entries of a finished request to a safetensors file.
"""

import json
from dataclasses import dataclass
from pathlib import Path

CONNECTOR_FOLDER = Path(__file__).parent / "inside"
"""All that a server sees of this package."""


@dataclass(frozen=True, kw_only=True)
class HiddenStates:
    """What a server is to write, and where."""

    layers: tuple[int, ...]
    """Layers whose outputs are wanted, 0-based, strictly increasing; may be empty."""
    num_layers: int
    """Layers of the target."""
    folder: Path
    """Where the files go; the server must write there, and the reader must see the same folder."""

    @property
    def engine_ids(self) -> tuple[int, ...]:
        """The layers in vLLM's numbers: i is what enters layer i, the output of layer i - 1.

        The last one is always among them: what leaves the last layer, before the final norm.
        """
        return tuple(sorted({*(layer + 1 for layer in self.layers), self.num_layers}))

    @property
    def places(self) -> tuple[int, ...]:
        """Where each of `layers` stands in the second dimension of a file."""
        return tuple(self.engine_ids.index(layer + 1) for layer in self.layers)

    def arguments(self) -> dict[str, str]:
        """Arguments of the command."""
        speculation = {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {
                "hf_config": {"eagle_aux_hidden_state_layer_ids": list(self.engine_ids)},
            },
        }
        transfer = {
            "kv_connector": "HiddenStatesWriter",
            "kv_connector_module_path": "hidden_states_writer",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": str(self.folder.absolute())},
        }
        return {
            "speculative-config": json.dumps(speculation),
            "kv-transfer-config": json.dumps(transfer),
        }
