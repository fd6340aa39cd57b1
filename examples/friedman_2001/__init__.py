"""The simulation study of J. Friedman, "Greedy function approximation: a gradient boosting machine" (2001), run anew.

``python -m examples.friedman_2001`` draws random target functions, trains the paper's contenders on noisy samples of them, and
writes tables and pictures beside the paper's figures into a folder.

    targets.py      random functions (39), (40), noise, and what an error is measured against
    experiments.py  the experiments: what is drawn, who competes, what is measured
    marketing.py    the demographic data, where they are there
    paper.py        what the paper reports
    report.py       tables
    pictures.py     box plots

Left out: MARS, of which no maintained library exists, and AdaBoost.MH, which scikit-learn does not have (its AdaBoost is SAMME,
another algorithm).
"""
