"""What a model learned: importance, dependence, Shapley values, diagnostics, pictures, a report.

Everything here reads a finished model (`dboost.model.Ensemble`), and most of it needs no data: the trees know how many
rows went which way. Each question has a module that answers it with a tidy table; `plots` draws the tables, `report`
puts them on one page, and `methods` is how they become methods of a `Booster`.
"""
