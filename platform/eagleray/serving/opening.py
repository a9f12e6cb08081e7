"""From settings to a service: target, drafter, engine and tokenizer loaded, and the regime they make."""

from itertools import count
from typing import TYPE_CHECKING, Any

from eagleray.corpus.chat import ChatTemplate, template_hash
from eagleray.drafters.base import DraftSource
from eagleray.drafters.catalog import build_drafter
from eagleray.drafters.folder import drafter_hash, load_drafter
from eagleray.drafters.partial_block import PartialBlock
from eagleray.engines.base import DraftSetting, Engine
from eagleray.engines.catalog import build_engine, engine_version
from eagleray.errors import ArtifactError
from eagleray.evaluation.regime import describe_machine
from eagleray.serving.config import DraftConfig, ServeConfig
from eagleray.serving.service import Lane, Service
from eagleray.settings import fingerprint
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.identity import target_hash
from eagleray.targets.loading import load_tokenizer, resolve_target

if TYPE_CHECKING:
    from eagleray.engines.native.engine import NativeEngine


def open_service(config: ServeConfig) -> Service:
    """Load everything that an application serves with.

    Raises:
        ArtifactError: The target or the drafter cannot be had.
        EngineError: The engine cannot start, or cannot draft like that.
    """
    folder = resolve_target(config.target)
    geometry = TargetGeometry.read(folder)
    engine = build_engine(config.engine, folder, config.target.dtype)
    chat = ChatTemplate(load_tokenizer(folder), config.template_arguments)
    numbers = count(1)

    def open_lane(draft: DraftConfig | None) -> Lane:
        setting = None if draft is None else open_draft(draft, engine)
        return Lane(
            name=f"{'plain' if draft is None else 'drafter'}-{next(numbers)}",
            stream=engine.open_stream(draft=setting),
            draft=draft,
            facts=draft_facts(draft),
        )

    regime = {
        "machine": describe_machine().model_dump(mode="json"),
        "engine": config.engine.name,
        "engine_version": engine_version(config.engine),
        "engine_settings": config.engine.model_dump(mode="json", exclude={"name"}),
        "dtype": config.target.dtype,
        "target_hash": target_hash(folder),
        "template_hash": template_hash(chat),
    }
    return Service(config, open_lane, chat, context_window_tokens(engine, geometry), regime)


def open_draft(config: DraftConfig, engine: Engine) -> DraftSetting:
    """Load a drafter for the target that a native engine runs.

    Raises:
        ArtifactError: There is no exported drafter in the folder.
    """
    native: NativeEngine = engine  # type: ignore[assignment]  # ServeConfig lets no other engine draft
    heads = native.decoder.heads
    source: DraftSource
    if config.drafter is not None:
        source = build_drafter(config.drafter, heads)
    else:
        assert config.folder is not None
        if not config.folder.is_dir():
            raise ArtifactError(
                f"There is no drafter in {config.folder.resolve()}. Train one first (`make demo` leaves its "
                "drafters in runs/demo/drafters), or set draft.folder to where one was exported."
            )
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


def draft_facts(config: DraftConfig | None) -> dict[str, Any]:
    """What a drafter adds to a regime: a hash of its weights, or of its settings where it has none."""
    if config is None:
        return {"drafter_hash": None, "draft": None, "lossy": False}
    return {
        "drafter_hash": drafter_hash(config.folder) if config.folder else fingerprint(config.drafter),
        "draft": config.model_dump(mode="json", exclude={"folder", "expected_tau"}),
        "lossy": config.typical is not None,
    }


def context_window_tokens(engine: Engine, geometry: TargetGeometry) -> int:
    """Prompt and answer together, in tokens."""
    limits = getattr(engine, "limits", None)
    return limits.context_window_tokens if limits is not None else geometry.max_position_embeddings
