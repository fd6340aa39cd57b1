"""The study of Friedman's paper: its generator implements (39)-(41), its tables are correct, and its command runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from examples.friedman_2001 import report
from examples.friedman_2001.__main__ import main
from examples.friedman_2001.targets import N_TERMS, LinearTarget, RandomTarget, as_strong_as, error, slash_noise


def test_random_targets_are_sums_of_gaussian_bumps() -> None:
    rng = np.random.default_rng(0)
    target = RandomTarget.draw(rng)
    x = rng.normal(size=(50, 10))
    expected = np.zeros(50)
    for term in target.terms:
        for i, row in enumerate(x):
            away = row[term.features] - term.centre
            expected[i] += term.weight * np.exp(-0.5 * away @ term.metric @ away)
    np.testing.assert_allclose(target(x), expected, rtol=1e-12)
    assert len(target.terms) == N_TERMS and all(abs(term.weight) <= 1 for term in target.terms)


def test_terms_have_the_paper_s_sizes_and_metrics() -> None:
    rng = np.random.default_rng(1)
    terms = [term for _ in range(100) for term in RandomTarget.draw(rng).terms]
    sizes = np.array([len(term.features) for term in terms])
    # ⌊1.5 + r⌋ is n where r lies in [n - 1.5, n - 0.5): of n = 1, all of [0, 0.5).
    for n in (1, 2, 3, 9):
        share = np.exp(-max(n - 1.5, 0.0) / 2) - np.exp(-(n - 0.5) / 2)
        assert abs((sizes == n).mean() - share) < 4 * np.sqrt(share / len(sizes))
    for term in terms[:200]:
        roots = np.sqrt(np.linalg.eigvalsh(term.metric))
        assert roots.min() >= 0.1 - 1e-9 and roots.max() <= 2.0 + 1e-9
        assert len(set(term.features)) == len(term.features)


def test_noise_is_as_strong_as_the_signal() -> None:
    rng = np.random.default_rng(2)
    truth = LinearTarget()(rng.normal(size=(2000, 10)))
    noise = as_strong_as(truth, slash_noise(rng, 2000))
    assert np.abs(noise).mean() == pytest.approx(np.abs(truth - np.median(truth)).mean())
    assert error(truth, truth) == 0.0
    assert error(truth, np.full(2000, np.median(truth))) == 1.0


def test_wins_and_excess() -> None:
    found = report.outcomes(pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [2.0, 2.0, 1.5]}))
    np.testing.assert_allclose(found.won, [50.0, 50.0])
    np.testing.assert_allclose(found.excess, [100 / 3, 100 / 3])
    np.testing.assert_allclose(found.error, [2.0, 5.5 / 3])


@pytest.mark.slow
def test_the_command_writes_tables_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    settings = ["--quick", "--targets", "2", "--only", "slash", "importance", "--output"]
    main([*settings, str(tmp_path / "a")])
    text = (tmp_path / "a" / "report.md").read_text()
    assert text in capsys.readouterr().out
    assert "| LAD |" in text and "| x10 | 100.0 ± 0.0 | 100.0 |" in text
    assert (tmp_path / "a" / "slash.svg").stat().st_size > 1000
    # Targets are functions of seed, experiment and number only.
    main([*settings, str(tmp_path / "b")])
    assert (tmp_path / "b" / "errors.json").read_bytes() == (tmp_path / "a" / "errors.json").read_bytes()
