"""The simulation study of J. Friedman, "Greedy function approximation: a gradient boosting machine" (2001).

``python -m examples.friedman_2001`` draws random target functions, trains the paper's algorithms on noisy samples of them, and
writes tables and plots beside the paper's results to a folder.

    targets.py      random functions (39), (40), noise, and the reference for errors
    experiments.py  the experiments: targets, contenders and error measures
    marketing.py    the demographic data, if available
    paper.py        results of the paper
    report.py       tables
    pictures.py     box plots

Left out: MARS, of which no maintained library exists, and AdaBoost.MH, which scikit-learn does not have (its AdaBoost is SAMME,
another algorithm).
"""
