"""Every engine's settings, as one union. Adding an engine adds one member here."""

from typing import Annotated

from pydantic import Field

from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.openai.config import OpenAIEngineConfig
from eagleray.engines.replay.config import ReplayEngineConfig

EngineConfig = Annotated[
    NativeEngineConfig | OpenAIEngineConfig | ReplayEngineConfig, Field(discriminator="name")
]
