"""scikit-learn's way to train and predict: `XMCClassifier`, also as `xmc_jax.XMCClassifier`."""

from xmc_jax.estimator.classifier import XMCClassifier

__all__ = ["XMCClassifier"]
