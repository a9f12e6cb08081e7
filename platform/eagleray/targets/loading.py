"""From a target section to a folder on this machine, and to its tokenizer."""

from pathlib import Path
from typing import Any

from eagleray.errors import ArtifactError
from eagleray.targets.config import EMBEDDED, TargetConfig
from eagleray.targets.embedded import prepare_embedded


def resolve_target(config: TargetConfig) -> Path:
    """Return the Hugging Face folder of the target, preparing or fetching it if needed.

    Raises:
        ArtifactError: The folder does not exist and the name is not one a hub knows.
    """
    if config.model == EMBEDDED:
        return prepare_embedded(config.cache_dir)
    folder = Path(config.model).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(config.model, revision=config.revision))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ArtifactError(
            f"Target {config.model!r} is neither a folder here nor a model that the hub gave "
            f"({type(error).__name__}). Set target.model to an existing folder, a reachable hub name, "
            "or `embedded`."
        ) from None


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer that lies in a target folder."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)
