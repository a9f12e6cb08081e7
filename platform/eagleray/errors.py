"""The one exception tree.

Every error a person can mend says what happened, the value seen, what was expected and the
setting or command that changes it. Job entry points turn these into one paragraph and the
exit code of the class; anything else keeps its traceback. Errors take one message, so they
pickle and cross process boundaries unchanged.
"""


class EagleRayError(Exception):
    """Root of all errors that EagleRay raises on purpose."""

    exit_code = 1


class ConfigError(EagleRayError, ValueError):
    """A recipe, override or command line is wrong. Raised before any cluster work."""

    exit_code = 2


class DataError(EagleRayError, ValueError):
    """Prompts, a dataset or stored features are missing, damaged or do not match the recipe."""

    exit_code = 3


class ArtifactError(EagleRayError, OSError):
    """A model, drafter or checkpoint folder is missing, incomplete or of the wrong shape."""

    exit_code = 3


class EngineError(EagleRayError, RuntimeError):
    """An engine could not start, answer, or accept a drafter."""

    exit_code = 4


class ClusterError(EagleRayError, RuntimeError):
    """Ray could not place, run or finish the work."""

    exit_code = 4


class NumericsError(EagleRayError, ArithmeticError):
    """A loss, gradient or logit is not finite, or an equality that must hold does not."""

    exit_code = 5
