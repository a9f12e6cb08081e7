"""Every engine's settings, in two unions. Adding an engine adds one member here."""

from typing import Annotated

from pydantic import Field

from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.openai.config import OpenAIEngineConfig
from eagleray.engines.replay.config import ReplayEngineConfig
from eagleray.engines.sglang.config import SglangConfig
from eagleray.engines.vllm.config import VllmConfig

EngineConfig = Annotated[
    NativeEngineConfig | OpenAIEngineConfig | ReplayEngineConfig, Field(discriminator="name")
]

DistilEngineConfig = Annotated[
    NativeEngineConfig | OpenAIEngineConfig | ReplayEngineConfig | VllmConfig, Field(discriminator="name")
]
"""Engines that answer prompts for distilling."""

ServedEngineConfig = VllmConfig | SglangConfig
"""Engines that we start as servers of their own."""
