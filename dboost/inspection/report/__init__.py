"""A model as one HTML page (`Booster.report`) and as a card in a notebook.

`page` computes what both show, the templates beside it (Jinja, with autoescaping) have the HTML and the style sheet, and `svg`
embeds plots. The page has no scripts and loads nothing; its plots follow the reader's light or dark color scheme.
"""
