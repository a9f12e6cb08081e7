"""Optuna's samplers and pruners by name."""

import warnings

import optuna

from eagleray.tuning.config import StudyConfig


def build_sampler(config: StudyConfig, seed: int) -> optuna.samplers.BaseSampler:
    """The sampler that a study names; `exhaustive` is given its points and never draws one."""
    if config.sampler == "tpe":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # Groups, because parameters exist only under their drafter.
            return optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=config.startup_trials, multivariate=True, group=True
            )
    if config.sampler == "nsga2":
        return optuna.samplers.NSGAIISampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def build_pruner(config: StudyConfig, max_resource: int) -> optuna.pruners.BasePruner:
    """The pruner that a study names; resources count from 1 to `max_resource`."""
    if config.pruner == "successive_halving":
        return optuna.pruners.SuccessiveHalvingPruner(
            min_resource=1, reduction_factor=config.reduction_factor
        )
    if config.pruner == "hyperband":
        return optuna.pruners.HyperbandPruner(
            min_resource=1, max_resource=max_resource, reduction_factor=config.reduction_factor
        )
    if config.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=2)
    return optuna.pruners.NopPruner()
