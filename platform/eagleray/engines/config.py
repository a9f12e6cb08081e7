"""Every engine's settings, as one union. Adding an engine adds one member here."""

from eagleray.engines.native.config import NativeEngineConfig

EngineConfig = NativeEngineConfig
