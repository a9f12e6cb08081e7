"""Which engine drafts with what: refusals by name, and a draft in the words of each engine."""

from typing import TYPE_CHECKING

from eagleray.drafters.catalog import build_drafter
from eagleray.drafters.folder import load_drafter
from eagleray.drafters.partial_block import PartialBlock
from eagleray.engines.base import DraftSetting
from eagleray.engines.served import Drafting, PromptLookup, ServedDrafter
from eagleray.errors import ArtifactError
from eagleray.serving.config import DraftConfig

if TYPE_CHECKING:
    from eagleray.drafters.base import DraftSource
    from eagleray.engines.native.engine import NativeEngine


def require_folder(config: DraftConfig | None) -> None:
    """Refuse a drafter that is not there.

    Raises:
        ArtifactError: The folder does not exist.
    """
    folder = config and config.folder
    if folder and not folder.is_dir():
        raise ArtifactError(
            f"There is no drafter in {folder.resolve()}. Train one first (`make demo` leaves its drafters in "
            "runs/demo/drafters), or set draft.folder to where one was exported."
        )


def native_draft(config: DraftConfig, engine: "NativeEngine") -> DraftSetting:
    """Load a drafter for the target that a native engine runs.

    Raises:
        ArtifactError: There is no exported drafter in the folder.
    """
    heads = engine.decoder.heads
    source: DraftSource
    if config.drafter is not None:
        source = build_drafter(config.drafter, heads)
    else:
        assert config.folder is not None
        require_folder(config)
        source = load_drafter(config.folder, heads)
    if config.block_size is not None:
        source = PartialBlock(source, config.block_size)
    return DraftSetting(
        source=source,
        depth=config.depth,
        tree=config.tree,
        drawn=config.drawn,
        typical=config.typical,
        adaptive=config.adaptive,
    )


def served_draft(config: DraftConfig | None) -> Drafting | None:
    """What a server of ours is told to draft with.

    Raises:
        ArtifactError: There is no exported drafter in the folder.
    """
    if config is None:
        return None
    if config.drafter is not None:
        lookup = config.drafter
        return PromptLookup(depth=config.depth, min_ngram=lookup.min_ngram, max_ngram=lookup.max_ngram)
    assert config.folder is not None
    require_folder(config)
    return ServedDrafter(folder=config.folder, depth=config.depth)
