"""Random target functions (section 6.1 of the paper), and noise as strong as the signal.

    F*(x) = Σ_l a_l g_l(z_l),   a_l ~ U[-1, 1]                                        (39)
    g_l(z) = exp(-½ (z - μ_l)ᵀ V_l (z - μ_l)),   V = U D Uᵀ                             (40)

Each of the twenty terms depends on a random subset z_l of the features, ⌊1.5 + r⌋ of them with r exponential of mean 2: main
effects and interactions of every order. U is a random rotation, and the square roots of D's diagonal are U[0.1, 2].

Noise is scaled to the signal: the mean of |ε| equals that of |F* - median F*| (41). *Slash* noise, a normal number over a
uniform one, has no mean; there the sample mean is scaled, which a simulation must do for (41) to hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

N_FEATURES = 10
N_TERMS = 20


@dataclass(frozen=True, eq=False)
class Term:
    """One Gaussian bump: weight a, features int64[n], centre float64[n], metric float64[n, n]."""

    weight: float
    features: np.ndarray
    centre: np.ndarray
    metric: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        away = x[:, self.features] - self.centre
        return self.weight * np.exp(-0.5 * np.einsum("ij,jk,ik->i", away, self.metric, away))


@dataclass(frozen=True, eq=False)
class RandomTarget:
    """F*: a sum of bumps."""

    terms: tuple[Term, ...]

    @classmethod
    def draw(cls, rng: np.random.Generator) -> RandomTarget:
        return cls(tuple(_draw_term(rng) for _ in range(N_TERMS)))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """float64[n_rows] of float64[n_rows, 10]."""
        return np.sum([term(x) for term in self.terms], axis=0)


@dataclass(frozen=True)
class LinearTarget:
    """F* = Σ_j (-1)^j j x_j (section 8.1), whose true importances are known."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        j = np.arange(1, x.shape[1] + 1)
        return x @ ((-1.0) ** j * j)


def _draw_term(rng: np.random.Generator) -> Term:
    n = min(int(1.5 + rng.exponential(2.0)), N_FEATURES)
    features = rng.permutation(N_FEATURES)[:n]
    # Of a Gaussian matrix, Q with R's diagonal made positive is uniform over all rotations (Haar).
    q, r = np.linalg.qr(rng.normal(size=(n, n)))
    rotation = q * np.sign(np.diag(r))
    metric = rotation * rng.uniform(0.1, 2.0, n) ** 2 @ rotation.T
    return Term(rng.uniform(-1.0, 1.0), features, rng.normal(size=n), metric)


def normal_noise(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=n)


def slash_noise(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=n) / (1.0 - rng.random(n))  # 1 - [0, 1): never zero


def as_strong_as(truth: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return the noise, scaled to a signal-to-noise ratio of one."""
    return noise * (np.abs(truth - np.median(truth)).mean() / np.abs(noise).mean())


def error(truth: np.ndarray, found: np.ndarray) -> float:
    """Return the mean absolute error relative to that of the best constant (37)."""
    return float(np.abs(truth - found).mean() / np.abs(truth - np.median(truth)).mean())
