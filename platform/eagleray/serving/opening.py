"""From settings to a service: target, drafter, engine and tokenizer loaded, and the regime they make."""

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagleray.corpus.chat import ChatTemplate, template_hash
from eagleray.drafters.folder import drafter_hash
from eagleray.engines.catalog import build_engine, engine_version, settings_in_use
from eagleray.engines.config import EngineConfig, ServedEngineConfig
from eagleray.engines.managed.engine import ManagedEngine, window_tokens
from eagleray.errors import ConfigError
from eagleray.evaluation.regime import describe_machine
from eagleray.serving.config import DraftConfig, ServeConfig, why_not_drafted
from eagleray.serving.drafts import native_draft, served_draft
from eagleray.serving.service import Lane, Service
from eagleray.settings import fingerprint
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.identity import target_hash
from eagleray.targets.loading import load_tokenizer, resolve_target

if TYPE_CHECKING:
    from eagleray.engines.native.engine import NativeEngine

Open = Callable[[str, DraftConfig | None], Lane]
"""Makes a lane of a name."""


def open_service(config: ServeConfig) -> Service:
    """Load everything that an application serves with, or start the server that does.

    Raises:
        ArtifactError: The target or the drafter cannot be had.
        EngineError: The engine cannot start, or cannot draft like that.
    """
    folder = resolve_target(config.target)
    chat = ChatTemplate(load_tokenizer(folder), config.template_arguments)
    regime = {
        "machine": describe_machine().model_dump(mode="json"),
        "engine": config.engine.name,
        "engine_version": engine_version(config.engine),
        "engine_settings": settings_in_use(config.engine),
        "dtype": config.target.dtype,
        "target_hash": target_hash(folder),
        "template_hash": template_hash(chat),
    }
    if isinstance(config.engine, ServedEngineConfig):
        regime["dtype"] = config.engine.dtype
        opened, window = _managed(config.engine, config.engine_logs, folder, chat)
    else:
        opened, window = _in_process(config.engine, folder, config.target.dtype)
    numbers = count(1)

    def open_lane(draft: DraftConfig | None) -> Lane:
        if draft is not None and (reason := why_not_drafted(config.engine.name, draft)):
            raise ConfigError(f"draft cannot be swapped in: {reason}.")
        return opened(f"{'plain' if draft is None else 'drafter'}-{next(numbers)}", draft)

    return Service(config, open_lane, chat, window, regime)


def _in_process(config: EngineConfig, folder: Path, dtype: str) -> tuple[Open, int]:
    """Lanes of one engine, and its window in tokens."""
    engine = build_engine(config, folder, dtype)

    def open_lane(name: str, draft: DraftConfig | None) -> Lane:
        native: NativeEngine = engine  # type: ignore[assignment]  # no other engine of this process drafts
        setting = None if draft is None else native_draft(draft, native)
        stream = engine.open_stream(draft=setting)
        return Lane(name=name, stream=stream, draft=draft, facts=draft_facts(draft))

    limits = getattr(engine, "limits", None)
    geometry = TargetGeometry.read(folder)
    return open_lane, limits.context_window_tokens if limits else geometry.max_position_embeddings


def _managed(config: ServedEngineConfig, logs: Path, folder: Path, chat: ChatTemplate) -> tuple[Open, int]:
    """Lanes that are servers, one a drafter, and their window in tokens."""

    def open_lane(name: str, draft: DraftConfig | None) -> Lane:
        log_file = logs / f"{config.name}-{os.getpid()}-{name}.log"
        engine = ManagedEngine(config, folder, served_draft(draft), log_file, chat.show)
        return Lane(
            name=name,
            stream=engine.stream,
            draft=draft,
            facts=draft_facts(draft),
            fault=engine.fault,
            close=engine.close,
        )

    return open_lane, window_tokens(config, TargetGeometry.read(folder))


def draft_facts(config: DraftConfig | None) -> dict[str, Any]:
    """What a drafter adds to a regime: a hash of its weights, or of its settings where it has none."""
    if config is None:
        return {"drafter_hash": None, "draft": None, "lossy": False}
    return {
        "drafter_hash": drafter_hash(config.folder) if config.folder else fingerprint(config.drafter),
        "draft": config.model_dump(mode="json", exclude={"folder", "expected_tau"}),
        "lossy": config.typical is not None,
    }
